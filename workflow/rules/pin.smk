"""Data, checkpoints and episodes kept with DVC: one job that runs alone, at the end, where the workflow was started."""

PINS = of_run("pins.json")


rule pin:
    input:
        MANIFEST,
        REPORT,
        rules.tables.output,
        rules.figures.output,
    output:
        PINS,
    log:
        of_run("logs/pin.log"),
    benchmark:
        of_run("benchmarks/pin.tsv")
    container:
        None
    threads: 1
    resources:
        mem_mb=grown(4000),
        runtime=grown(240),
        gpu=0,
    params:
        settings=settings_of(CONFIG.dvc.model_dump(mode="json")),
    message:
        "Pin data, checkpoints and episodes"
    shell:
        "hgpo pin add --config {CONFIG_FILE} --out {output} > {log} 2>&1"


localrules:
    pin,
