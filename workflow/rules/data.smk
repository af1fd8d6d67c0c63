"""What needs a network: tasks and panels of each environment, models from the hub. And the check of environments."""


rule prepare_data:
    output:
        f"{CONFIG.data.directory}/{{environment}}/prepared.json",
    log:
        of_run("logs/prepare_data/{environment}.log"),
    benchmark:
        of_run("benchmarks/prepare_data/{environment}.tsv")
    threads: 1
    resources:
        mem_mb=grown(4000),
        runtime=grown(60),
        gpu=0,
    params:
        settings=lambda w: settings_of(data_settings(w.environment)),
    message:
        "Prepare the tasks of {wildcards.environment}"
    shell:
        "hgpo prepare-data --config {CONFIG_FILE} --environment {wildcards.environment} > {log} 2>&1"


rule fetch_model:
    output:
        MODEL_RECORD,
    log:
        of_run("logs/fetch_model/{model}.log"),
    benchmark:
        of_run("benchmarks/fetch_model/{model}.tsv")
    container:
        None
    threads: 1
    resources:
        mem_mb=grown(4000),
        runtime=grown(240),
        gpu=0,
    params:
        settings=lambda w: settings_of(CONFIG.models[w.model].source, CONFIG.models[w.model].revision),
    message:
        "Fetch and check the model {wildcards.model}"
    shell:
        "hgpo fetch-model --config {CONFIG_FILE} --model {wildcards.model} --out {output} > {log} 2>&1"


localrules:
    prepare_data,
    fetch_model,


rule check_environment:
    input:
        lambda w: data_marker(w.environment),
    output:
        of_run("checks/{environment}.json"),
    log:
        of_run("logs/check_environment/{environment}.log"),
    benchmark:
        of_run("benchmarks/check_environment/{environment}.tsv")
    threads: 1
    resources:
        mem_mb=grown(4000),
        runtime=grown(30),
        gpu=0,
    params:
        settings=lambda w: settings_of(environment_settings(w.environment)),
    message:
        "Check the panels of {wildcards.environment}, let the expert win and idleness lose"
    shell:
        "hgpo check-environment --config {CONFIG_FILE} --environment {wildcards.environment}"
        " --out {output} > {log} 2>&1"
