"""What is expected of a measured job under another share: the cost model's answer, in proportion to what was seen.

The model may be off by some per cent, and a gain must not come from that. So its answers are scaled: for what was measured
they are what was measured, from storage and with everything cached; in between, and for other shares, in proportion. No
answer is faster than the loop. What the link to other hosts takes is not scaled: its rate is known, and nothing that was
seen of the job says that it brings less. Advice, plans, `whatif` and pages all ask here: the same question has one answer.
Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from stoker.decide.limit import limit_of, loop_rate
from stoker.decide.model import Prediction, Share, hit_ratio, predict
from stoker.errors import ConfigError
from stoker.plan import HOST
from stoker.profile import Confidence, OnDevice, Profile, Rates


def as_measured(profile: Profile) -> Share:
    """The share that a profile was made with."""
    return Share(workers=profile.workers, cached=profile.cached, threads=profile.workers_kind == "threads")


@dataclass(frozen=True, slots=True)
class Scale:
    """The measured speed of a job, relative to what the model says."""

    cold: float = 1.0
    cached: float = 1.0
    since: float = 0.0
    """The part of the samples that came from the cache when `cold` was seen."""
    loop: float = 1.0
    """1, or more if the job was seen to go faster than the loop alone, by chance."""

    def at(self, hits: float) -> float:
        """The scale if such a part of the samples comes from the cache."""
        if hits <= self.since or self.since == 1:
            return self.cold
        return self.cold + (self.cached - self.cold) * (hits - self.since) / (1 - self.since)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicts the speed of a measured job under a share."""

    rates: Rates
    confidence: Confidence = field(default_factory=Confidence)
    scale: Scale = field(default_factory=Scale)
    on_device: Mapping[str, "Forecast"] = field(default_factory=dict)
    """The forecasts for a device that does a part of preparing, where that was measured."""

    @classmethod
    def of(cls, profile: Profile) -> Self:
        """The forecast for a profile. Raises ConfigError if too little was measured."""
        now = as_measured(profile)
        seen = profile.speed.cold or profile.speed.cached
        expected = predict(profile.rates, now)
        cached = expected.rate / (1 - expected.fetch_stall)
        cold = seen / expected.rate if seen else 1.0
        scale = Scale(
            cold=cold,
            cached=profile.speed.cached / cached if profile.speed.cached else cold,
            since=now.cached,
            loop=max(1.0, max(seen, profile.speed.cached) / loop_rate(profile.rates.gpu, profile.rates.handover)),
        )
        on_device = {one.where: cls._with_device(profile, one, scale) for one in profile.on_device}
        return cls(profile.rates, profile.confidence, scale, on_device)

    @classmethod
    def _with_device(cls, profile: Profile, seen: OnDevice, host: Scale) -> Self:
        """The forecast for a device that does a part of preparing: other rates of workers and loop, the same storage.

        From storage it was not seen. There the model is taken to be as far off as it was on the host; no storage is faster
        than what is cached.
        """
        rates = profile.rates
        more = seen.prep / rates.prep
        by_workers = {count: more * rate for count, rate in rates.prep_by_workers.items()}
        cache = max(rates.cache, seen.prep) if rates.cache else 0.0  # samples were read in it, so that is as fast at least
        rates = replace(rates, gpu=seen.loop, prep=seen.prep, cache=cache, handover=0.0)
        rates = replace(rates, prep_by_workers=by_workers, prep_by_threads={})
        expected = predict(rates, Share(workers=profile.workers, cached=1.0))
        cached = seen.cached / expected.rate
        cold = cached * (host.cold / host.cached if profile.cached < 1 else 1.0)
        cold = min(cold, seen.cached / predict(rates, Share(workers=profile.workers, cached=profile.cached)).rate)
        speed = profile.speed
        if speed.cold and speed.cached and not rates.storage:  # reading is known by the loop's waiting for it alone
            waiting_s = max(0.0, 1 / speed.cold - 1 / speed.cached)
            cold = 1 / (1 / seen.cached + waiting_s) / expected.rate
        return cls(rates, profile.confidence, Scale(cold, cached, profile.cached, max(1.0, seen.cached / seen.loop)))

    def __call__(self, share: Share) -> Prediction:
        """How fast, why not faster, and how sure that is."""
        if share.prep != HOST:
            return self.on(share.prep)(replace(share, prep=HOST))
        return self._scaled(predict(self.rates, share, self.confidence), share)

    def rate(self, share: Share) -> float:
        """Only the speed, which is quicker to compute than the whole prediction."""
        if share.prep != HOST:
            return self.on(share.prep).rate(replace(share, prep=HOST))
        return self._scaled(predict(self.rates, share), share).rate

    def on(self, part: str) -> "Forecast":
        """The forecast, with its rates, for where pixels are computed. Raises ConfigError if that was not measured."""
        if part == HOST:
            return self
        if part not in self.on_device:
            raise ConfigError(
                f"the speed with --prep {part} was not measured: `stoker analyze` does that where it may help"
            )
        return self.on_device[part]

    def _scaled(self, raw: Prediction, share: Share) -> Prediction:
        by = self.scale.at(min(1.0, hit_ratio(share.cached, share.policy) + share.peers))  # the rest was seen from storage
        by = self._beside_the_link(by, raw.rate, share)
        most = self.scale.loop * loop_rate(raw.gpu, self.rates.handover)
        rate = min(most, by * raw.rate)
        with_all_cached = self.scale.cached * raw.rate / (1 - raw.fetch_stall)
        with_all_cached = max(rate, min(most, raw.gpu, with_all_cached))
        prep_stall = max(0.0, rate / with_all_cached - rate / raw.gpu)
        fetch_stall = 1 - rate / with_all_cached
        return replace(
            raw,
            rate=rate,
            limit=limit_of(prep_stall, fetch_stall),
            prep_stall=prep_stall,
            fetch_stall=fetch_stall,
            low=min(rate, by * raw.low),
            high=max(rate, min(most, by * raw.high)),
        )

    def _beside_the_link(self, by: float, rate: float, share: Share) -> float:
        """The scale of a rate for which a part comes over a link: that of the time that is not the link's."""
        if not share.peers:
            return by
        rest = predict(replace(self.rates, peer=0.0), replace(share, network=None)).rate
        rest_s, whole_s = 1 / rest, 1 / rate
        return whole_s / (max(whole_s, rest_s / by) if by < 1 else whole_s - rest_s + rest_s / by)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a report says of a job first: its speed, where its time goes, and its limit."""

    rate: float
    """Samples per second; 0 is unknown."""
    prep: float
    fetch: float
    limit: str

    @property
    def stall(self) -> float:
        """The part of the time that the loop waits for data."""
        return min(1.0, self.prep + self.fetch)

    @property
    def compute(self) -> float:
        """The part of the time that the loop computes."""
        return 1 - self.stall


def verdict(profile: Profile) -> Verdict:
    """The verdict from what was measured, or from a prediction if the script's own loop was not measured."""
    seen, stalls = profile.speed.cold or profile.speed.cached, profile.stalls
    if seen:
        return Verdict(seen, stalls.prep, stalls.fetch, limit_of(stalls.prep, stalls.fetch))
    try:
        found = Forecast.of(profile)(as_measured(profile))
    except (ConfigError, ArithmeticError):
        return Verdict(0.0, stalls.prep, stalls.fetch, profile.limit)
    return Verdict(0.0, found.prep_stall, found.fetch_stall, found.limit)
