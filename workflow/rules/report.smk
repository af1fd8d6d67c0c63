"""Tables and figures from the episodes and metrics on disk; the report, the viewer and the manifest of it all."""

from hgpo.reporting.expected import expected_figures, expected_tables

REPORT = of_run("report.html")
MANIFEST = of_run("manifest.json")
VIEWER = of_run("viewer")


def in_report(path, category):
    """An output that the report shows, with the caption of its name."""
    name = Path(path).stem
    caption = f"../report/{'types' if name.startswith('types_') else name}.rst"
    return report(path, caption=caption, category=category, labels={"": name.replace("_", " ")})


rule tables:
    input:
        all_episodes(),
    output:
        [in_report(of_run(f"tables/{name}.html"), "Tables") for name in expected_tables(CONFIG)],
        [of_run(f"tables/{name}.{kind}") for name in expected_tables(CONFIG) for kind in ("md", "csv", "tex")],
    log:
        of_run("logs/tables.log"),
    benchmark:
        of_run("benchmarks/tables.tsv")
    group:
        "results"
    threads: 1
    resources:
        mem_mb=grown(4000),
        runtime=grown(30),
        gpu=0,
        slot=1,
    message:
        "Write the results tables"
    shell:
        "hgpo tables --config {CONFIG_FILE} > {log} 2>&1"


rule figures:
    input:
        all_episodes(),
    output:
        [in_report(of_run(f"figures/{name}.svg"), "Figures") for name in expected_figures(CONFIG)],
        [of_run(f"figures/{name}.{kind}") for name in expected_figures(CONFIG) for kind in ("pdf", "png")],
    log:
        of_run("logs/figures.log"),
    benchmark:
        of_run("benchmarks/figures.tsv")
    group:
        "results"
    threads: 1
    resources:
        mem_mb=grown(4000),
        runtime=grown(30),
        gpu=0,
        slot=1,
    message:
        "Draw the figures"
    shell:
        "hgpo figures --config {CONFIG_FILE} > {log} 2>&1"


rule report:
    input:
        rules.tables.output,
        rules.figures.output,
    output:
        REPORT,
        of_run("report.html.sha256"),
    log:
        of_run("logs/report.log"),
    benchmark:
        of_run("benchmarks/report.tsv")
    container:
        None
    threads: 1
    resources:
        mem_mb=grown(4000),
        runtime=grown(30),
        gpu=0,
    message:
        "Write the report"
    shell:
        "hgpo report --config {CONFIG_FILE} --out {output[0]} > {log} 2>&1"


rule manifest:
    input:
        CONTAINER,
        rules.tables.output,
        rules.figures.output,
        REPORT,
        VIEWER,
    output:
        MANIFEST,
        of_run("ro-crate-metadata.json"),
    log:
        of_run("logs/manifest.log"),
    benchmark:
        of_run("benchmarks/manifest.tsv")
    threads: 1
    resources:
        mem_mb=grown(4000),
        runtime=grown(60),
        gpu=0,
    message:
        "Record what every file and every table row was made from"
    shell:
        "hgpo manifest --config {CONFIG_FILE} > {log} 2>&1"


rule viewer:
    input:
        all_episodes(),
    output:
        directory(VIEWER),
    log:
        of_run("logs/viewer.log"),
    benchmark:
        of_run("benchmarks/viewer.tsv")
    group:
        "results"
    threads: 1
    resources:
        mem_mb=grown(4000),
        runtime=grown(60),
        gpu=0,
        slot=1,
    message:
        "Write the page for looking into episodes"
    shell:
        "hgpo view {CONFIG_FILE} --static {output} > {log} 2>&1"


localrules:
    all,
    report,
