"""The image that the other rules run in; without containers a record that says so."""


rule container:
    output:
        CONTAINER,
    log:
        of_run("logs/container.log"),
    benchmark:
        of_run("benchmarks/container.tsv")
    container:
        None
    threads: 1
    resources:
        mem_mb=grown(4000),
        runtime=grown(60),
        gpu=0,
    params:
        settings=settings_of(CONFIG.containers.model_dump(mode="json")),
    message:
        "Build or verify the container image" if CONFIG.containers.enabled else "Record that no container is used"
    shell:
        "hgpo container --config {CONFIG_FILE} --out {output} > {log} 2>&1"


localrules:
    container,
