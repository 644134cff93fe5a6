"""What is seen of a job whose preparation is split between hosts, look by look, and what is known from it. Pure."""

from dataclasses import dataclass, field, replace

from stoker.plan import OFFLOAD_PARTS

ALL, _, SAMPLES = OFFLOAD_PARTS


@dataclass(frozen=True, slots=True)
class Look:
    """What happened since the look before, on one host. Counts are samples."""

    seconds: float
    here: float
    """Made by workers of this host."""
    there: float
    """Made by remote workers."""
    taken: float
    """Given to the loop."""
    waited: float
    """The part of its time that the loop waited."""
    busy_here: float
    """The part of the time of this host's workers in which they had something to do."""
    busy_there: float
    workers: int
    """Remote workers."""
    cpu_here: float = 0.0
    """Seconds of processor time of this host's workers."""
    cpu_there: float = 0.0
    """Seconds of processor time of this host for batches of remote workers."""
    is_mixed: bool = False
    """Whether remote workers still have works with another part than the one that they are given with now."""
    timings: tuple[float, ...] = ()
    """What the loop took each time it was timed, in samples per second."""


@dataclass(frozen=True, slots=True)
class There:
    """What is known of remote workers that do one part of the preparation."""

    rate: float
    """Samples per second of one of them; 0 if they are of no use."""
    cpu: float | None = None
    """Seconds of this host's processor time for a sample that is prepared there."""
    loss: float | None = None
    """How many samples fewer own workers were seen to make for each that is prepared there."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a job, a pipeline and remote workers. None: it was not measured yet."""

    loop: float | None = None
    local: float | None = None
    cpu_here: float | None = None
    """Seconds of processor time for a sample that is prepared here."""
    there: dict[str, There] = field(default_factory=dict)
    """By the part of the preparation that is done there. A part that is not in it was not tried."""

    def with_there(self, part: str, there: There) -> "Known":
        """The same, with this known of a part."""
        return replace(self, there={**self.there, part: there})

    def cost(self, part: str) -> float:
        """What a sample of a remote worker costs here, in parts of what preparing it costs: no more than its processor
        time, and less where own workers wait for storage or cores are free. Collating takes the training process's time,
        which is not counted, so there it is what own workers were seen to lose."""
        there = self.there.get(part, There(0.0))
        by_time = there.cpu / self.cpu_here if there.cpu and self.cpu_here else 0.0
        if there.loss is None:
            return by_time
        return there.loss if part == SAMPLES else min(by_time, there.loss)


def together(looks: list[Look]) -> Look:
    """Several looks as one."""
    seconds = sum(look.seconds for look in looks)

    def mean(name: str) -> float:
        return float(sum(getattr(look, name) * look.seconds for look in looks) / seconds)

    def total(name: str) -> float:
        return float(sum(getattr(look, name) for look in looks))

    return Look(
        seconds,
        total("here"),
        total("there"),
        total("taken"),
        mean("waited"),
        mean("busy_here"),
        mean("busy_there"),
        looks[-1].workers,
        total("cpu_here"),
        total("cpu_there"),
        any(look.is_mixed for look in looks),
        looks[-1].timings,
    )
