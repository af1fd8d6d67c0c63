"""The training loop: collect, compare, learn, check, save; again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from tqdm import tqdm

from hgpo import advantages
from hgpo.config import Config, Run, check_run
from hgpo.envs import environment_factory
from hgpo.envs.pool import Pool
from hgpo.errors import EnvironmentFailure, HgpoError, Interrupted
from hgpo.files import clear_unfinished, sha256_json, write_json
from hgpo.rollout.collector import Collector, Job
from hgpo.rollout.episode import Episode, Step, step_columns
from hgpo.rollout.policy import policy_hash
from hgpo.stderr import ERROR_STREAM
from hgpo.tasks import draw_tasks
from hgpo.training.batches import Row
from hgpo.training.checkpoint import (
    Progress,
    claim,
    find_checkpoint,
    holds_state,
    list_checkpoints,
    save_checkpoint,
    written_whole,
)
from hgpo.training.journal import Journal, in_words, this_process
from hgpo.training.learner import Sample
from hgpo.training.machines import Machines, open_machines
from hgpo.training.metrics import Clock, MetricsLog, save_rollouts, summarise, with_times
from hgpo.training.plan import Plan, make_plan
from hgpo.training.probe import check_gap
from hgpo.training.scores import Score, Scores, ScoresBeside, row_of
from hgpo.training.signals import StopSignal
from hgpo.versions import code_commit, hardware, package_versions

VALIDATION_TEMPERATURE = 0.4


def train(config: Config, run: Run, stopped: StopSignal, allow_config_change: bool = False) -> Path:
    """Trains one run to its end and returns its `finished.json`; goes on from the newest checkpoint if there is one.

    Raises Interrupted (exit code 75) after saving its state when `stopped` has noted a signal, ConfigError if the
    newest checkpoint was made under another configuration and `allow_config_change` is not set, HgpoError if another
    process trains the run, or if its checkpoints are those of other results.
    """
    check_run(config, run)
    folder, checkpoints = run.folder(config), run.checkpoint_folder(config)
    with ExitStack() as held:
        held.enter_context(_alone(run, folder))
        if not checkpoints.is_relative_to(folder):
            held.enter_context(_alone(run, checkpoints))
            claim(checkpoints, folder)
        journal = Journal(folder / "train.log")
        for place in (folder, checkpoints):
            clear_unfinished(place)
        try:
            finished = _train(config, run, stopped, allow_config_change, journal)
        except BaseException as error:
            journal.note(f"ended: {type(error).__name__}: {error}")
            raise
        journal("finished")
        return finished


def _train(config: Config, run: Run, stopped: StopSignal, allow_config_change: bool, journal: Journal) -> Path:
    started = time.monotonic()
    plan = make_plan(config, run)
    found = find_checkpoint(run.checkpoint_folder(config), plan.identity, allow_config_change)
    path, progress, changes = found or (None, Progress(), [])
    journal(f"{run}: {this_process()}: {f'goes on from {path}' if path else 'starts'}")
    for change in changes:
        journal(f"{run}: configuration changed: {change}")
    factory = environment_factory(run.environment, config.data_folder(run.environment))
    training, validation = plan.training, plan.validation_panel
    if training.validate_every and (held_out := len(validation or ())) < training.validation_tasks:
        journal(f"{run}: validates on {held_out} tasks, not {training.validation_tasks}: a fifth of the panel at most")
    with Pool(factory, workers=training.environment_workers, group_size=training.rollouts_per_task) as pool:
        expect_tasks(pool, plan, progress.iteration)  # loaded while the machines start
        with open_machines(plan, path, progress.iteration) as machines:
            trainer = Trainer(plan, machines, pool, progress, stopped, journal)
            try:
                trainer.run()
            finally:
                trainer.metrics.close()
    return _finish(plan, progress, time.monotonic() - started)


@contextmanager
def _alone(run: Run, folder: Path) -> Iterator[None]:
    """Holds the lock of a run's folder; the system frees it when this process ends, however it does."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".train.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise HgpoError(
            f"{run} is being trained by another process: it holds {folder / '.train.lock'}",
            "wait for it or end it; a Slurm job may have outlived the Snakemake that submitted it (squeue)",
        ) from None
    try:
        yield
    finally:
        lock.release()


@dataclass
class Trainer:
    """One run under way: `progress` says how far it is, everything else follows from the plan."""

    plan: Plan
    machines: Machines
    pool: Pool
    progress: Progress
    stopped: StopSignal
    journal: Journal

    def __post_init__(self) -> None:
        plan = self.plan
        written = self.progress.iteration - bool(self.progress.unvalidated)
        self.metrics = MetricsLog(plan.folder, written, plan.config.tracking, plan.identity)
        if lost := self.metrics.lost:
            self.journal(f"metrics.jsonl lacks {lost} of {written} iterations: figures will, too")
        self.collector = Collector(
            plan.protocol,
            plan.run.history,
            plan.template,
            self.machines.tokenizer,
            self.machines.engine,
            self.pool,
            plan.run.seed,
            plan.model.engine.stale,
            plan.model.engine.timeout_s,
        )

    def run(self) -> None:
        training = self.plan.training
        bar = tqdm(
            total=training.iterations,
            initial=self.progress.iteration,
            desc=str(self.plan.run),
            unit="iteration",
            disable=None,
            file=ERROR_STREAM,
        )
        with bar:
            if self.progress.unvalidated:
                self._conclude(self.progress.unvalidated, [], Clock())
            while self.progress.iteration < training.iterations and not self._stops_early():
                line = self.iterate(self.progress.iteration)
                bar.set_postfix(success=f"{line['success']:.2f}", refresh=False)
                bar.update()
        if self.progress.iteration:
            self._save()  # unless it is: a finished run may go on under a changed configuration
        self._write_final()

    def iterate(self, iteration: int) -> dict[str, Any]:
        """One iteration; returns what was measured. Raises Interrupted after saving the state if it is to stop."""
        training, clock = self.plan.training, Clock()
        scores = self._scores()
        try:
            played = self._collect(iteration, scores, clock)
            self._leave_if_stopped()
            failed = self._note_failures(played, f"iteration {iteration + 1}")
            episodes = whole_groups(played)
            expect_tasks(self.pool, self.plan, iteration + 1)  # loaded while the learner works
            steps = [step for episode in episodes for step in episode.steps]
            self.machines.engine.sleep()
            samples, measured, returns = self._compare(episodes, steps, scores, clock)
            self._leave_if_stopped()
        except Interrupted:
            raise
        except HgpoError:
            self._save_if_possible()  # the weights are still those of the completed iterations
            raise
        rows = [sample.row for sample in samples]
        with clock("update"):
            learned = self._learn(samples, returns, iteration)
        with clock("weight_sync"):
            self.machines.engine.update_weights(self.machines.learner, iteration + 1)
            most = self.plan.protocol.agent.max_response_tokens
            learned |= check_gap(self.machines, self.plan.model.engine, training.temperature, rows, iteration + 1, most)
        self.progress.iteration = iteration + 1
        if training.episodes_every and (self._is_last() or iteration % training.episodes_every == 0):
            path = self.plan.folder / "rollouts" / f"iteration-{iteration:06d}.parquet"
            save_rollouts(path, episodes, np.array([sample.advantage for sample in samples]))
        line = {"iteration": iteration} | summarise(episodes) | {"failed": failed}
        return self._conclude(line | learned | measured, rows, clock)

    def _conclude(self, line: dict[str, Any], rows: list[Row], clock: Clock) -> dict[str, Any]:
        """Validates and saves where that is due, and writes the iteration's line of metrics.

        The line of an iteration whose validation is cut short is kept in `progress.unvalidated`, with the times so far:
        the validation is made up for.
        """
        training, done, tokens = self.plan.training, self.progress.iteration, sum(map(len, rows))
        self.progress.unvalidated = {}
        if training.validate_every and (self._is_last() or done % training.validate_every == 0):
            try:
                with clock("validation"):
                    outcome = self._validate(done - 1)
            except HgpoError:
                self.progress.unvalidated = with_times(line, clock.times(tokens))
                self._save()
                raise
            if outcome is None:
                self.progress.unvalidated = with_times(line, clock.times(tokens))
                self._leave_if_stopped()
            line = line | (outcome or {})
        timed = with_times(line, clock.times(tokens))
        self.metrics.write(timed)
        self.journal(in_words(timed, training.iterations))
        due = training.checkpoint_every and done % training.checkpoint_every == 0
        if self._is_last() or due or self._stops_early():
            self._save()
        if not self._is_last():
            self._leave_if_stopped()
        return line

    def _is_last(self) -> bool:
        return self.progress.iteration == self.plan.training.iterations

    def _scores(self) -> Scores:
        """What learner and critic are asked about the steps of an iteration."""
        learner, critic, training = self.machines.learner, self.machines.critic, self.plan.training
        scores: dict[str, Score] = {"reference_log_probs": learner.reference_log_probs}
        if training.old_log_probs != "engine":
            scores["old_log_probs"] = learner.log_probs
        if critic:
            scores["values"] = critic.values
        if not self.plan.model.placement.overlap:
            return Scores(scores)
        tokens = self.plan.model.placement.learner_ranks * training.token_budget
        return ScoresBeside(scores, training.rollouts_per_task, tokens)

    def _collect(self, iteration: int, scores: Scores, clock: Clock) -> list[Episode]:
        """Plays the episodes of an iteration; if `scores` are computed meanwhile, waits for them, too."""
        jobs, temperature = jobs_of(self.plan, iteration), self.plan.training.temperature
        keys, collect = ("train", iteration), self.collector.collect
        try:
            with clock("rollout"):
                episodes = list(collect(jobs, temperature, keys, self.plan.batch, self.stopped, scores.watch))
            if not self.stopped() and self.plan.model.placement.overlap:
                with clock("scores"):
                    scores.wait()
        finally:
            scores.close()
        return sorted(episodes, key=lambda e: e.trajectory)

    def _note_failures(self, episodes: list[Episode], when: str) -> int:
        """How many episodes lost their environment; the journal tells of the first."""
        lost = [episode for episode in episodes if episode.failed]
        if lost:
            count = f"{len(lost)} of {len(episodes)} episodes"
            self.journal(f"{when}: {count} lost their environment, first {lost[0].task}: {lost[0].failed}")
        return len(lost)

    def _compare(
        self, episodes: list[Episode], steps: list[Step], scores: Scores, clock: Clock
    ) -> tuple[list[Sample], dict[str, Any], tuple[np.ndarray, np.ndarray] | None]:
        """(samples to learn from, what was measured, for `ppo` returns and values of the steps)."""
        plan = self.plan
        columns, returns = step_columns(episodes), None
        if self.machines.critic:
            with clock("values"):
                columns["value"] = [float(value) for value in scores.of("values", episodes)]
        with clock("advantages"):
            values = advantages.compute(plan.estimator, columns, **plan.options)
            if self.machines.critic:
                critic_values = np.array(columns["value"])
                plain = advantages.compute(plan.estimator, columns, **(plan.options | {"whiten": False}))
                returns = plain + critic_values, critic_values
        with clock("diagnostics"):
            measured = advantages.diagnose(
                {key: column for key, column in columns.items() if key != "value"},
                history=plan.run.history,
                gamma=plan.protocol.gamma,
                invalid_penalty=plan.protocol.invalid_penalty,
                normalisation=plan.protocol.normalisation,
            ).metrics
        sampled = [np.asarray(step.log_probs, np.float32) for step in steps]
        with clock("old_log_probs"):
            old = sampled if plan.training.old_log_probs == "engine" else scores.of("old_log_probs", episodes)
        with clock("reference_log_probs"):
            reference = scores.of("reference_log_probs", episodes)
        statistics = self.collector.statistics
        gaps = [np.abs(mine - theirs) for mine, theirs in zip(old, sampled, strict=True)]
        measured |= {
            "log_prob_gap": float(np.concatenate(gaps).mean()),
            "log_prob_gap_worst": max((float(gap.mean()) for gap in gaps if gap.size), default=0.0),
            "advantage/mean": float(values.mean()),
            "advantage/std": float(values.std()),
            "engine/busy_share": statistics.engine_s / max(statistics.total_s, 1e-9),
            "engine/stale": statistics.stale,
        }
        weights: list[np.ndarray | None] = [None] * len(steps)
        if plan.training.old_log_probs == "corrected":
            cap = plan.training.correction_cap
            truncated = [np.exp(np.minimum(o - s, np.log(cap))) for o, s in zip(old, sampled, strict=True)]
            joined, weights = np.concatenate(truncated), list(truncated)
            measured |= {"correction/mean": float(joined.mean()), "correction/capped": float((joined >= cap).mean())}
        samples = [
            Sample(row_of(step), float(value), *arrays)
            for step, value, *arrays in zip(steps, values, old, reference, weights, strict=True)
        ]
        return samples, measured, returns

    def _learn(
        self, samples: list[Sample], returns: tuple[np.ndarray, np.ndarray] | None, iteration: int
    ) -> dict[str, float]:
        training, seed, learned = self.plan.training, self.plan.run.seed, {}
        if self.machines.critic and returns:
            rows = [sample.row for sample in samples]
            learned = self.machines.critic.update(rows, *returns, training.mini_batch_steps, seed, iteration)
            if iteration < training.critic.warm_up_iterations:
                return learned
        return learned | self.machines.learner.update(samples, seed, iteration)

    def _validate(self, iteration: int) -> dict[str, float] | None:
        """Plays the validation tasks; keeps the policy in `best/` if none was better before. None if it is to stop.

        Episodes that lost their environment do not count. Raises EnvironmentFailure if all did.
        """
        if self.plan.validation_panel is None:
            return {}
        jobs = [Job(task) for task in self.plan.validation_panel.tasks]
        keys = ("validation", iteration)
        played = self.collector.collect(jobs, VALIDATION_TEMPERATURE, keys, self.plan.batch, self.stopped)
        episodes = list(played)
        if self.stopped():
            return None
        self._note_failures(episodes, f"validation after iteration {iteration + 1}")
        whole = [episode for episode in episodes if not episode.failed]
        if not whole:
            raise _none_played("validation task", episodes)
        outcome = summarise(whole)
        reached = {"iteration": iteration, "success": outcome["success"], "score": outcome["score"]}
        best = self.progress.best
        if not best or (reached["success"], reached["score"]) > (best["success"], best["score"]):
            with written_whole(self.plan.folder / "best") as temporary:
                self.machines.learner.write_policy(temporary)
                write_json(temporary / "best.json", reached)
            self.progress.best, self.progress.since = reached, 0
        else:
            self.progress.since += 1
        return {f"validation/{key}": outcome[key] for key in ("success", "score", "steps")}

    def _stops_early(self) -> bool:
        patience = self.plan.training.early_stopping
        return bool(patience) and self.progress.since >= patience

    def _leave_if_stopped(self) -> None:
        if self.stopped():
            self._save()
            raise Interrupted(
                f"{self.plan.run}: stopped by {self.stopped.received} after {self.progress.iteration} of "
                f"{self.plan.training.iterations} iterations; saved",
                "run the same command again to go on",
            )

    def _save(self) -> None:
        folder, training = self.plan.run.checkpoint_folder(self.plan.config), self.plan.training
        newest = list_checkpoints(folder)[-1:]
        if newest and holds_state(newest[0], self.progress, self.plan.identity):
            return
        save_checkpoint(folder, self.progress, self.plan.identity, training.keep_checkpoints, self.machines.write)

    def _save_if_possible(self) -> None:
        """After an error, which matters more than one that it leads to."""
        try:
            self._save()
        except HgpoError as error:
            self.journal(f"{self.plan.run}: its state could not be saved: {error.message}")

    def _write_final(self) -> None:
        with written_whole(self.plan.folder / "final") as temporary:
            self.machines.learner.write_policy(temporary)


def expect_tasks(pool: Pool, plan: Plan, iteration: int) -> None:
    """Lets the environment workers load the tasks of an iteration in their idle time, if it is still to come."""
    if iteration < plan.training.iterations:
        pool.expect(job.task for job in jobs_of(plan, iteration))


def jobs_of(plan: Plan, iteration: int) -> list[Job]:
    """The episodes of an iteration, the rollouts of a task beside each other."""
    training = plan.training
    tasks = draw_tasks(plan.training_panel, plan.run.seed, iteration, training.tasks_per_iteration)
    return [Job(task, rollout) for task in tasks for rollout in range(training.rollouts_per_task)]


def whole_groups(episodes: list[Episode]) -> list[Episode]:
    """Episodes of tasks whose rollouts all succeeded technically; a group with a lost environment is left out.

    Raises EnvironmentFailure if no group is left.
    """
    lost = {episode.task for episode in episodes if episode.failed}
    kept = [episode for episode in episodes if episode.task not in lost and episode.steps]
    if not kept:
        raise _none_played("task", episodes)
    return kept


def _none_played(what: str, episodes: list[Episode]) -> EnvironmentFailure:
    lost = ((episode.task, episode.failed) for episode in episodes if episode.failed)
    task, reason = next(lost, ("none", "no episode was played"))
    return EnvironmentFailure(f"no {what} could be played; first: {task}: {reason}", "run `hgpo env check`")


def _finish(plan: Plan, progress: Progress, wall_s: float) -> Path:
    finished = plan.folder / "finished.json"
    write_json(
        finished,
        {
            "run": vars(plan.run),
            "estimator": plan.estimator,
            "options": plan.options,
            "identity": plan.identity,
            "iterations": progress.iteration,
            "best": progress.best,
            "checkpoint": "final",
            "checkpoint_hash": policy_hash(plan.folder / "final"),
            "start_hash": plan.identity["start_hash"],
            "panel_hash": plan.identity["panel_hash"],
            "config_hash": sha256_json(plan.identity),
            "wall_s": round(wall_s, 3),
            "commit": code_commit(),
            "packages": package_versions(),
            "hardware": hardware(),
        },
    )
    return finished
