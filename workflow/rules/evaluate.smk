"""Every checkpoint on every split once per evaluation seed; the starting checkpoints too, as `warm_start`.

The baselines that play by rule need seconds: one job plays all splits and seeds of an environment.
"""

EPISODES = of_run("episodes/{model}/{environment}/{method}/K{history}/seed{seed}/{split}/seed{evaluation_seed}.parquet")


BASELINES = plan_baselines(CONFIG)


def evaluated(w):
    """The files that say that what is to be evaluated is complete."""
    if w.method == "warm_start":
        return START.format(**w)
    if w.method not in PROMPTED:
        return FINISHED.format(**w)
    checked = [data_marker(w.environment), of_run("checks/{environment}.json").format(**w)]
    return checked + ([MODEL_RECORD.format(model=w.model)] if CONFIG.models[w.model].trainable else [])


def checkpoint_folder(w):
    """The folder to evaluate; nothing for a baseline, which takes the model as the configuration names it."""
    if w.method in PROMPTED:
        return ""
    marker = Path(evaluated(w))
    return (marker.parent if w.method == "warm_start" else marker.parent / "final").as_posix()


def evaluation_settings(w):
    """The protocol and how it is sampled; of a baseline also the model, which no checkpoint stands for."""
    protocol = CONFIG.environment(w.environment).model_dump(mode="json", exclude={"training", "warm_start"})
    aside = {"seeds", "batch_size"} | (set() if w.method == "reflexion" else {"reflexion_trials"})
    sampling = CONFIG.evaluation.model_dump(mode="json", exclude=aside)
    if w.method not in PROMPTED:
        return settings_of(protocol, sampling)
    model = CONFIG.models[w.model]
    return settings_of(protocol, sampling, model.source, model.revision, model.endpoint and model.endpoint.body)


def starting_points():
    """The starting checkpoints of the planned runs, as runs of the method `warm_start`."""
    return sorted(
        {
            Run(run.model, run.environment, "warm_start", run.history, CONFIG.warm_start_for(run.environment).seed)
            for run in RUNS
        }
    )


def all_episodes():
    """The evaluation episodes of every planned run, starting checkpoint and baseline."""
    return [path for run in starting_points() + RUNS + BASELINES for path in episodes_of(run)]


def episodes_of(run):
    return [
        run.episodes(CONFIG, split, seed).as_posix()
        for split in CONFIG.environment(run.environment).evaluation_splits
        for seed in CONFIG.evaluation.seeds
    ]


rule evaluate:
    input:
        evaluated,
    output:
        EPISODES,
    log:
        of_run("logs/evaluate/{model}/{environment}/{method}/K{history}/seed{seed}/{split}/seed{evaluation_seed}.log"),
    benchmark:
        of_run(
            "benchmarks/evaluate/{model}/{environment}/{method}/K{history}/seed{seed}/{split}/seed{evaluation_seed}.tsv"
        )
    group:
        "evaluate-{model}-{environment}-{method}-K{history}-seed{seed}"
    container:
        MODEL_IMAGE
    threads: lambda w: max(1, 8 * min(1, gpus_of(w.model)))
    resources:
        mem_mb=grown(lambda w: 4000 + 60000 * min(1, gpus_of(w.model))),
        runtime=grown(240),
        gpu=lambda w: min(1, gpus_of(w.model)),
        slot=1,
    params:
        checkpoint=checkpoint_folder,
        settings=evaluation_settings,
    message:
        "Evaluate {wildcards.model}, {wildcards.method} with K = {wildcards.history}, training seed {wildcards.seed},"
        " on {wildcards.environment} {wildcards.split} with seed {wildcards.evaluation_seed}"
    shell:
        "exec hgpo evaluate {params.checkpoint} --config {CONFIG_FILE} --environment {wildcards.environment}"
        " --split {wildcards.split} --seed {wildcards.evaluation_seed} --model {wildcards.model}"
        " --method {wildcards.method} --history {wildcards.history} --training-seed {wildcards.seed}"
        " --out {output} > {log} 2>&1"


for scripted in [run for run in BASELINES if run.method in SCRIPTED]:

    rule:
        name:
            f"evaluate_{scripted.method}_{scripted.model}_{scripted.environment}"
        input:
            data_marker(scripted.environment),
            of_run(f"checks/{scripted.environment}.json"),
        output:
            episodes_of(scripted),
        log:
            of_run(f"logs/evaluate/{scripted}.log"),
        benchmark:
            of_run(f"benchmarks/evaluate/{scripted}.tsv")
        group:
            "baselines"
        threads: 1
        resources:
            mem_mb=grown(4000),
            runtime=grown(60),
            gpu=0,
            slot=1,
        params:
            run=scripted,
            settings=settings_of(
                environment_settings(scripted.environment),
                CONFIG.environment(scripted.environment).evaluation_splits,
                CONFIG.evaluation.limit,
            ),
        message:
            f"Evaluate the baseline {scripted.method} on {scripted.environment}, all splits and seeds"
        shell:
            "exec hgpo evaluate --config {CONFIG_FILE} --model {params.run.model}"
            " --environment {params.run.environment} --method {params.run.method} --history {params.run.history}"
            " > {log} 2>&1"
