"""The starting checkpoint of each model, environment and K, and every training run from it.

Only the files that say "finished" are outputs: Snakemake deletes the outputs of a job before it starts it again,
and what a run needs to go on after an interruption must stay.
"""

START = of_run("start/{model}/{environment}/K{history}/checkpoint.json")
FINISHED = of_run("runs/{model}/{environment}/{method}/K{history}/seed{seed}/finished.json")


rule warm_start:
    input:
        data=lambda w: data_marker(w.environment),
        check=of_run("checks/{environment}.json"),
        model=lambda w: [] if CONFIG.models[w.model].source == "embedded" else MODEL_RECORD.format(model=w.model),
    output:
        START,
    log:
        of_run("logs/warm_start/{model}/{environment}/K{history}.log"),
    benchmark:
        of_run("benchmarks/warm_start/{model}/{environment}/K{history}.tsv")
    container:
        MODEL_IMAGE
    threads: lambda w: max(1, 8 * gpus_of(w.model))
    resources:
        mem_mb=grown(lambda w: 4000 + 60000 * gpus_of(w.model)),
        runtime=grown(240),
        gpu=lambda w: gpus_of(w.model),
    params:
        settings=lambda w: settings_of(start_settings(w.model, w.environment, w.history)),
    message:
        "Warm start of {wildcards.model} on {wildcards.environment} with K = {wildcards.history}"
    shell:
        "exec hgpo warm-start --config {CONFIG_FILE} --model {wildcards.model}"
        " --environment {wildcards.environment} --history {wildcards.history} > {log} 2>&1"


rule train:
    input:
        START,
    output:
        FINISHED,
    log:
        of_run("logs/train/{model}/{environment}/{method}/K{history}/seed{seed}.log"),
    benchmark:
        of_run("benchmarks/train/{model}/{environment}/{method}/K{history}/seed{seed}.tsv")
    container:
        MODEL_IMAGE
    threads: lambda w: max(1, 8 * gpus_of(w.model))
    resources:
        mem_mb=grown(lambda w: 4000 + 60000 * gpus_of(w.model)),
        runtime=grown(1440),
        gpu=lambda w: gpus_of(w.model),
        nodes=lambda w: nodes_of(w.model),
        tasks=lambda w: 0 if gpus_of(w.model) else nodes_of(w.model),
    params:
        settings=lambda w: settings_of(run_settings(w.model, w.environment, w.method, w.history)),
        estimator=lambda w: settings_of(estimator_identity(CONFIG, w.method, w.environment, int(w.history))),
    message:
        "Train {wildcards.model} on {wildcards.environment} with {wildcards.method},"
        " K = {wildcards.history}, seed {wildcards.seed}"
    shell:
        "exec hgpo train --config {CONFIG_FILE} --model {wildcards.model} --environment {wildcards.environment}"
        " --method {wildcards.method} --history {wildcards.history} --seed {wildcards.seed} >> {log} 2>&1"
