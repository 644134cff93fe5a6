"""What is known of jobs, from the catalogue; and jobs that are started to learn what is not.

If the jobs are to run at all, one of those that were started goes on with its work, and only the others are ended.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stoker.errors import CommandError
from stoker.run.together.calibrating import Calibration, calibrate
from stoker.run.together.catalogue import Beside, Catalogue, Solo
from stoker.run.together.going_on import GoingOn, who_goes_on
from stoker.run.together.jobs import TogetherJob
from stoker.run.together.planning import check_cache, ready_part
from stoker.run.together.running import Running


@dataclass(frozen=True, slots=True)
class KnownValues:
    """Values of jobs by their numbers, and of one beside another."""

    solo: Mapping[int, Solo]
    pairs: Mapping[tuple[int, int], Beside]

    @property
    def solos(self) -> list[Solo]:
        """Of all jobs, in their order. Raises if they do not read the same."""
        found = [self.solo[number] for number in sorted(self.solo)]
        if any(one.data != found[0].data for one in found):
            raise CommandError("these jobs read different data: none gains by what another has read")
        return found

    @property
    def beside(self) -> list[list[Beside]]:
        """Of each job beside all that it was seen beside."""
        return [[one for (mine, _), one in self.pairs.items() if mine == number] for number in sorted(self.solo)]


def recall(catalogue: Catalogue, jobs: Sequence[TogetherJob]) -> KnownValues:
    """What the catalogue has."""
    solo = {number: found for number, job in enumerate(jobs) if (found := catalogue.solo(job.key)) is not None}
    pairs = {
        (one, other): beside
        for one, job in enumerate(jobs)
        for other, its in enumerate(jobs)
        if one != other and (beside := catalogue.beside(job.key, its.key)) is not None
    }
    return KnownValues(solo, pairs)


def leader_of(jobs: Sequence[TogetherJob]) -> int:
    """The job that reads first while others are measured: one with most epochs, which is likely to end last."""
    return max(range(len(jobs)), key=lambda number: (jobs[number].epochs, -number))


def unknown(known: KnownValues, count: int, leader: int) -> list[int]:
    """The jobs that have to be measured beside the leader."""
    if leader not in known.solo:
        return [number for number in range(count) if number != leader]
    return [
        number
        for number in range(count)
        if number != leader and (number not in known.solo or {(leader, number), (number, leader)} - known.pairs.keys())
    ]


def _keep(catalogue: Catalogue, jobs: Sequence[TogetherJob], found: Calibration) -> None:
    for job, its in sorted(zip(jobs, found.solo, strict=True), key=lambda one: one[1].cold_iterations):
        catalogue.keep_solo(job.key, its)
    for (one, other), beside in found.pairs.items():
        catalogue.keep_beside(jobs[one].key, jobs[other].key, beside)


class Learning:
    """Jobs that were started to be measured; by number, all in `runs`, which its owner ends."""

    def __init__(self, jobs: Sequence[TogetherJob], numbers: Sequence[int], leader: int, runs: list[Running]) -> None:
        self._jobs, self._leader = jobs, leader
        self._numbers, self._list = sorted({leader, *numbers}), runs
        self._cache_bytes = 0
        self._found: Calibration | None = None
        self._unkept = ""

    def start(self, seed: int, cache_bytes: int, *, quietly: bool) -> None:
        """Start them."""
        self._cache_bytes = cache_bytes
        for number in self._numbers:
            self._list.append(Running.start(self._jobs[number], seed, cache_bytes, quietly=quietly))

    def measure(self, known: KnownValues, catalogue: Catalogue, most: int, tell: Callable[[str], None]) -> KnownValues:
        """What is known of all jobs when these have been measured. It is kept in the catalogue, too."""
        some = [self._jobs[number] for number in self._numbers]
        leader = self._numbers.index(self._leader)
        found = calibrate(self._list, some, leader, most, self._ready_part, known.solo.get(self._leader), tell)
        if found.solo[leader].cold_iterations:  # else storage was not seen, and next time it may be
            try:
                _keep(catalogue, some, found)
            except OSError as error:  # the values are good for this time nevertheless
                self._unkept = f"; this cannot be kept for the next time: {catalogue.path}: {error.strerror}"
        self._found = found
        solo = dict(zip(self._numbers, found.solo, strict=True))
        pairs = {(self._numbers[one], self._numbers[other]): beside for (one, other), beside in found.pairs.items()}
        return KnownValues({**known.solo, **solo}, {**known.pairs, **pairs})

    def _ready_part(self, data: str, whole: float) -> float:
        check_cache(self._cache_bytes, whole)
        return ready_part(data, whole)

    @property
    def said(self) -> str:
        """For people: what it took, and what was not seen."""
        assert self._found is not None
        names = [run.name for run in self._list]
        missing = f"; not seen: {', '.join(self._found.defaults)}" if self._found.defaults else ""
        leader = self._jobs[self._leader].name
        jobs = f"{', '.join(names[:-1])} and {names[-1]}"
        return f"measured {jobs} in {self._found.tried_s:.1f} s beside the work of {leader}{missing}{self._unkept}"

    def go_on(self, known: KnownValues, objective: str) -> tuple[GoingOn, dict[int, Running]]:
        """Let the best one go on, or all; end the others. Jobs that were not started here are planned for, too."""
        assert self._found is not None
        runs = dict(zip(self._numbers, self._list, strict=True))
        solo = known.solos
        passes = {
            number: run.seen.batches / solo[number].iterations for number, run in runs.items() if run.seen is not None
        }
        going = who_goes_on(
            self._jobs,
            solo,
            known.beside,
            passes,
            self._leader,
            self._cache_bytes,
            objective=objective,
            ready=self._found.ready,
        )
        ended = [run for number, run in runs.items() if number not in going.who]
        for number in going.who:
            runs[number].go_on()
        for run in ended:
            run.ask_to_end()
        for run in ended:
            run.end()
        return going, {number: runs[number] for number in going.who}
