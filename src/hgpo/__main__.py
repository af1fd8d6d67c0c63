import sys

try:
    from hgpo.cli import main
except ModuleNotFoundError as error:  # click is not there: this Python has none of the packages, or hardly any
    from hgpo.provenance.machine import INSTALL, USES, examine, plain

    if sys.argv[1:2] != ["doctor"]:
        sys.exit(f"hgpo: the package {error.name} is not installed\n  mend: {INSTALL}")
    print(plain(list(examine(list(USES))), list(USES)))
    sys.exit(1)

main()
