"""What is measured while the loop is paused: workers by themselves, with all samples in memory, then storage, cold.

This is done once: when the script pauses the loop to validate, or when the phases before are over. Afterwards all samples
are warm.
"""

import itertools
import random
import time
from typing import Any

from stoker.host.cores import usable_cores
from stoker.measure import files
from stoker.run.afar import peer_rate, shared_keys
from stoker.run.agenda import Agenda
from stoker.run.elsewhere import remote_rates
from stoker.run.preparing import Preparing
from stoker.run.reading import Reading
from stoker.run.subject import SampleIds, Subject

_MOST_SAMPLES = 20_000
_IN_MEMORY = 0.99
_COLD = 0.05
_NEVER_S = 1e9
_RESERVED = 0.4
"""The part of all time that is kept for the loop, from measurements that can be done without."""


class Paused:
    """Measures preparing and reading over some batches of a loader."""

    def __init__(self, subject: Subject, agenda: Agenda, batches: list[Any]) -> None:
        self._subject, self._agenda, self._found = subject, agenda, agenda.found
        self._batches = batches
        self._is_done = False
        self.is_coolable = False
        """Whether samples can be made cold, as far as is known."""

    def measure(self) -> None:
        """Measure everything, unless that was done before."""
        if self._is_done:
            return
        self._is_done = True
        try:
            self._measure_workers_and_storage()
        except Exception as error:  # of the user's dataset, which is asked for samples in a way that it did not expect
            self._found.note(f"preparing and reading could not be measured by themselves: {type(error).__name__}: {error}")

    def _measure_workers_and_storage(self) -> None:
        found, agenda, storage = self._found, self._agenda, self._subject.storage
        ids = sorted({number for batch in self._batches for number in self._subject.samples(batch)})
        self._describe(ids)
        paths = [path for some in storage.paths(ids) for path in some]
        self._make_warm(ids, paths)
        self._measure_prep()
        if agenda.offload and agenda.has_time_for("offload", _RESERVED):
            self._measure_offload()
            agenda.finish("offload")
        reading = Reading(self._subject, agenda)
        if not storage.is_known:
            found.spread = reading.measure_spread(ids)
            found.note(f"reading was not told from preparing: {storage.why}; 'prep' has both in it")
            return
        if storage.is_files and not _can_be_cold(paths):
            found.spread = reading.measure_spread(ids)
            found.note("the files cannot be made cold (another process holds them in memory): storage was not measured")
            return
        self.is_coolable = True
        if agenda.has_time_for("storage", _RESERVED):
            reading.measure(ids, paths)
            agenda.finish("storage")
        elif storage.is_files:
            files.warm(paths)
        if agenda.peers and agenda.has_time_for("peers", _RESERVED):
            self._measure_peers(ids)
            agenda.finish("peers")

    def _measure_offload(self) -> None:
        found, agenda, subject = self._found, self._agenda, self._subject
        agenda.say("preparing on other hosts")
        loader = subject.offloaded(itertools.cycle(self._batches), agenda.offload)
        remotes, trouble = remote_rates(loader, agenda.phase_s / 2)
        if trouble:
            found.note(f"preparation on other hosts was not measured: {trouble}")
        found.remote = {part: (remote.rate, remote.cost, remote.workers) for part, remote in remotes.items()}

    def _measure_peers(self, ids: SampleIds) -> None:
        found, agenda, subject = self._found, self._agenda, self._subject
        agenda.say("reading from other hosts")
        some = random.Random(0).sample(ids, len(ids))
        keys = shared_keys(subject.dataset, some, lambda: subject.storage.paths(some))
        readers = max(1, subject.workers)
        rate, trouble = 0.0, "hosts have no common names for samples of such a dataset"
        if any(keys):
            rate, trouble = peer_rate(agenda.peers, keys, readers, agenda.phase_s / 2)
        slowest_s = agenda.ranks.largest(1 / rate if rate else _NEVER_S)
        found.peer = 1 / slowest_s if slowest_s < _NEVER_S else 0.0
        if trouble:
            found.note(f"other hosts{'' if rate else ' were not measured'}: {trouble}")

    def _describe(self, ids: SampleIds) -> None:
        """Describe the dataset's size, from these samples or from all."""
        found, storage = self._found, self._subject.storage
        found.samples = self._subject.length
        if storage.is_known:
            if (storage.is_files and found.samples > _MOST_SAMPLES) or not storage.is_files:
                found.bytes = round(storage.bytes(ids) / len(ids) * found.samples)
            else:
                known = list(range(found.samples)) if storage.is_listed else ids
                found.bytes = round(storage.bytes(known) / len(known) * found.samples)
                found.bytes_known = len(known) == found.samples

    def _make_warm(self, ids: SampleIds, paths: list[str]) -> None:
        """Have all samples in memory: the kernel's, or a cache of ours for a source that the kernel keeps nothing of."""
        storage = self._subject.storage
        if storage.is_files:
            files.warm(paths)
            if files.resident(paths) < _IN_MEMORY:
                self._found.note("the samples of the cached phase do not stay in memory: 'prep' has some reading in it")
        elif storage.is_known:
            self._agenda.say("filling a cache")
            self._subject.keep(ids)

    def _measure_prep(self) -> None:
        subject, found, agenda = self._subject, self._found, self._agenda
        preparing = Preparing(subject, agenda)
        for workers in worker_counts(subject.workers, agenda.ranks.world):
            if agenda.has_time_for(f"prep {workers}", _RESERVED if found.prep else 0.0):
                agenda.say(f"preparing with {workers} worker{'s' if workers != 1 else ''}")
                preparing.measure(self._batches, workers)
                agenda.finish(f"prep {workers}")
        most = max(found.prep, default=0)
        if most and subject.can_use_threads and not found.threads and agenda.has_time_for("threads", _RESERVED):
            agenda.say(f"preparing with {most} threads")
            preparing.measure_threads(self._batches, most)
            agenda.finish("threads")


def worker_counts(own: int, world: int) -> list[int]:
    """The loader's own number of workers, then others to judge more or fewer by."""
    cores = max(1, int(usable_cores() / max(1, world)))
    counts = {1, max(1, cores // 2), cores, max(1, own)} if cores <= 4 or own else {1, cores}
    counts |= {0} if own == 0 else set()
    return [own, *sorted(counts - {own})]


def _can_be_cold(paths: list[str]) -> bool:
    for _ in range(10):  # threads of the phase before may still be at their last sample
        files.cool(paths, sync=True)
        if files.resident(paths) <= _COLD:
            return True
        time.sleep(0.1)
    return False
