// The cost model of stoker/decide (network.py, limit.py, model.py, forecast.py), for the sliders of the page. Pure.
//
// Name by name the same as there, where every line is explained; a test compares the two on hundreds of random profiles.
// Maps from a count of workers to a rate are arrays of [count, rate], by rising count.
"use strict";

globalThis.stokerModel = (() => {
  const FLAT = 0.2;
  const BEYOND = 4;
  const HALVINGS = 32;
  const NOTHING = 1e-9;
  const ORDER = 0.5;
  const SAVES = 1.25;
  const HELD_UP = 0.1;

  // ---- network.py

  function curve(points, growing) {
    const counts = [0, ...points.map(([count]) => count)];
    const rates = [0, ...points.map(([, rate]) => rate)];
    const end = counts.length - 1;
    const last = counts[end];
    const top = rates[end];
    const steep = Math.min((top - rates[end - 1]) / (last - counts[end - 1]), top / last);
    const slope = growing && steep >= (FLAT * top) / last ? steep : 0;
    return (count) => {
      if (count >= last) return top + slope * (Math.min(count, BEYOND * last) - last);
      const number = counts.findIndex((upper) => count < upper);
      const below = rates[number - 1];
      const part = (count - counts[number - 1]) / (counts[number] - counts[number - 1]);
      return below + (rates[number] - below) * part;
    };
  }

  function throughput(workers, prepare, read, misses, chance) {
    const readers = lastRoot((n) => prepare(workers - n) * misses - read(n), workers);
    const smooth = prepare(workers - readers);
    const rates = Array.from({ length: workers + 1 }, (_, count) => prepare(count));
    let weight = 1;
    let total = 1;
    let weighted = rates[workers];
    for (let reading = 1; reading <= workers; reading++) {
      weight *= (rates[workers - reading + 1] * misses) / read(reading);
      total += weight;
      weighted += weight * rates[workers - reading];
      if (total > 1e200) [weight, weighted, total] = [weight / total, weighted / total, 1];
    }
    return smooth - Math.max(0, smooth - weighted / total) * Math.min(1, chance);
  }

  function lastRoot(falling, atMost) {
    if (falling(atMost) >= 0) return atMost;
    let [low, high] = [0, atMost];
    for (let step = 0; step < HALVINGS; step++) {
      const middle = (low + high) / 2;
      if (falling(middle) >= 0) low = middle;
      else high = middle;
    }
    return low;
  }

  // ---- limit.py

  const loopRate = (gpu, handover) => 1 / (1 / gpu + (handover ? 1 / handover : 0));

  function limitOf(prepStall, fetchStall) {
    if (prepStall + fetchStall < HELD_UP) return "gpu";
    return prepStall >= fetchStall ? "prep" : "fetch";
  }

  // ---- model.py

  function hitRatio(cached, policy) {
    return policy === "lru" && cached > 0 && cached < 1 ? cached + (1 - cached) * Math.log1p(-cached) : cached;
  }

  function predict(rates, share, confidence = {}) {
    for (const stage of ["gpu", "prep"]) {
      if (rates[stage] <= NOTHING) throw new Error(`nothing can be predicted: the rate ${stage} was not measured`);
    }
    const job = new Job(rates, share);
    const rate = job.rate(job.hits);
    const gpu = rates.gpu * factor(share.gpu_factor);
    const withoutFetch = Math.max(rate, job.rate(1));
    const cautiousJob = new Job(rates, share, true);
    const cautious = cautiousJob.rate(cautiousJob.hits);
    const [falls, rises] = [-1, 1].map((sign) => moves(rates, share, confidence, rate, sign));
    const [prepStall, fetchStall] = [Math.max(0, rate / withoutFetch - rate / gpu), 1 - rate / withoutFetch];
    return {
      rate,
      limit: limitOf(prepStall, fetchStall),
      prep_stall: prepStall,
      fetch_stall: fetchStall,
      low: Math.max(0, rate - Math.hypot(falls, rate - Math.min(rate, cautious))),
      high: rate + rises,
      gpu,
      prep: job.prepRate(),
      fetch: job.fetchRate(),
      extrapolated: cautious < 0.99 * rate,
    };
  }

  function moves(rates, share, confidence, rate, sign) {
    const ends = [];
    for (const stage of ["gpu", "prep", "storage", "cache"]) {
      const width = Math.min(0.9, confidence[stage] || 0);
      if (width) {
        const job = new Job(scaled(rates, stage, 1 + sign * width), share);
        ends.push(job.rate(job.hits) - rate);
      }
    }
    return Math.hypot(...ends);
  }

  function scaled(rates, stage, by) {
    const tables = { prep: ["prep_by_workers", "prep_by_threads"], storage: ["storage_by_readers"] }[stage] || [];
    const changed = { ...rates, [stage]: rates[stage] * by };
    if (stage === "storage") changed.storage_rested = (rates.storage_rested || 0) * by;
    for (const name of tables) {
      changed[name] = Object.fromEntries(Object.entries(rates[name]).map(([count, rate]) => [count, rate * by]));
    }
    return changed;
  }

  class Job {
    constructor(rates, share, cautious = false) {
      this.workers = share.workers ?? rates.workers;
      this.readers = Math.max(1, this.workers);
      this.cores = share.cores || rates.cores || Infinity;
      this.hits = hitRatio(share.cached || 0, share.policy || "keep-first");
      this.spread = rates.spread;
      this.busy = rates.prep_busy;
      this.batch = rates.batch;
      this.loop = loopRate(rates.gpu * factor(share.gpu_factor), rates.handover);
      this.loopCoreS = rates.loop_cores / rates.gpu;
      const counted = Math.max(1, rates.workers);
      this.cacheS = rates.cache ? counted / rates.cache : 0;
      this.readsInside = !rates.cache || rates.prep <= rates.cache;
      this.readPart = rates.cache ? rates.prep / rates.cache : 0;
      const knee = this.busy ? (rates.cores || Infinity) / this.busy : Infinity;
      this.learnPrep(prepPoints(rates, share, this.workers), knee, cautious);
      const own = rates.storage || rates.storage_by_readers[counted] || 0;
      let store = points([...entries(rates.storage_by_readers), [counted, own]]);
      if (store.length === 1 && !cautious) store = [[1, store[0][1]]];
      store = store.map(([count, rate]) => [count, rate * factor(share.storage_factor)]);
      this.store = store.length ? curve(store, store.length > 1 && !cautious) : null;
      const rested = (rates.storage_rested || 0) * factor(share.storage_factor);
      this.rested = this.store && rested > SAVES * this.store(1) ? rested : 0;
    }

    learnPrep(measured, knee, cautious) {
      const free = measured.filter(([count]) => count <= knee);
      this.line = curve(free.length ? free : measured.slice(0, 1), !cautious);
      const full = knee < Infinity ? this.line(knee) : 0;
      const beyond = measured.filter(([count]) => count > knee);
      this.crowded = [[1, 1], ...beyond.map(([count, rate]) => [count / knee, rate / full])];
    }

    preparing(count, cores, hits) {
      const room = this.busy ? cores / this.busy : Infinity;
      const working = Math.min(count, room);
      if (working <= 0) return 0;
      let sampleS = working / this.line(working);
      if (count > room && this.crowded.length > 1) sampleS /= between(count / room, this.crowded);
      const readS = this.readsInside ? (hits - 1) * this.readPart * sampleS : hits * this.cacheS;
      return working / Math.max(sampleS + readS, 0.02 * sampleS);
    }

    prepRate() {
      const hits = this.readsInside ? 1 : 0;
      const alone = this.preparing(this.readers, this.cores, hits);
      if (!this.workers || !this.loopCoreS || this.cores === Infinity) return alone;
      const left = (rate) => this.preparing(this.readers, this.cores - rate * this.loopCoreS, hits) - rate;
      return lastRoot(left, Math.min(this.cores / this.loopCoreS, alone));
    }

    fetchRate() {
      const cache = this.cacheS ? this.readers / this.cacheS : Infinity;
      if (this.store === null || this.hits === 1) return cache;
      return 1 / (this.hits / cache + (1 - this.hits) / this.store(this.readers));
    }

    reading(count) {
      return Math.max(this.store(count), count * this.rested);
    }

    lasting(rate, hits) {
      return this.rested && hits < 1 ? Math.min(rate, this.store(this.readers) / (1 - hits)) : rate;
    }

    rate(hits) {
      if (!this.workers) {
        const fetchS = this.store ? (1 - hits) / this.reading(1) : 0;
        const rate = 1 / (1 / this.loop + 1 / this.preparing(1, Math.max(1, this.cores), hits) + fetchS);
        return this.store ? this.lasting(rate, hits) : rate;
      }
      const atMost = Math.min(this.loop, this.delivered(this.cores, hits));
      if (!this.loopCoreS || this.cores === Infinity) return atMost;
      const left = (rate) => this.delivered(this.cores - rate * this.loopCoreS, hits) - rate;
      return lastRoot(left, Math.min(atMost, this.cores / this.loopCoreS));
    }

    delivered(cores, hits) {
      if (cores <= 0) return 0;
      if (hits === 1 || this.store === null) return this.preparing(this.workers, cores, 1);
      const chance = 1 - Math.max(0, 1 - this.spread) * (1 - hits);
      let rate = throughput(this.workers, (n) => this.preparing(n, cores, hits), (n) => this.reading(n), 1 - hits, chance);
      rate /= 1 + ORDER * this.uneven(rate, cores, hits) * (1 - 1 / this.workers);
      rate = this.lasting(rate, hits);
      if (!this.readsInside) rate = Math.min(rate, this.fetchRate());
      return this.cacheS <= 1 / this.reading(1) ? Math.min(rate, this.preparing(this.workers, cores, 1)) : rate;
    }

    uneven(rate, cores, hits) {
      if (!this.batch) return 0;
      const cycleS = this.workers / rate;
      const fetchS = Math.max(0, cycleS - this.workers / this.preparing(this.workers, cores, hits)) / (1 - hits);
      return ((hits + this.spread ** 2) * (1 - hits) * (fetchS / cycleS) ** 2) / this.batch;
    }
  }

  function prepPoints(rates, share, workers) {
    const threads = share.threads ? points(entries(rates.prep_by_threads)) : [];
    if (threads.length) return threads;
    const measured = points(entries(rates.prep_by_workers));
    const same = Boolean(rates.workers) === Boolean(workers);
    return same || !measured.length ? points([...measured, [Math.max(1, rates.workers), rates.prep]]) : measured;
  }

  // ---- what Python has in the language or in numpy

  const factor = (value) => value ?? 1;

  const entries = (table) => Object.entries(table).map(([count, rate]) => [Number(count), rate]);

  // Of the same count the last one holds, as in a dict.
  function points(pairs) {
    const rising = [...new Map(pairs)].sort(([one], [other]) => one - other);
    return [...new Map(rising.filter(([, rate]) => rate > NOTHING).map(([count, rate]) => [Math.max(1, count), rate]))];
  }

  // numpy.interp
  function between(x, pairs) {
    const upper = pairs.findIndex(([at]) => x < at);
    if (upper === 0) return pairs[0][1];
    if (upper < 0) return pairs[pairs.length - 1][1];
    const [[x0, y0], [x1, y1]] = [pairs[upper - 1], pairs[upper]];
    return y0 + ((y1 - y0) * (x - x0)) / (x1 - x0);
  }

  // ---- forecast.py

  function scaleAt(scale, hits) {
    if (hits <= scale.since || scale.since === 1) return scale.cold;
    return scale.cold + ((scale.cached - scale.cold) * (hits - scale.since)) / (1 - scale.since);
  }

  function forecast(rates, scale, share, confidence) {
    const raw = predict(rates, share, confidence);
    const by = scaleAt(scale, hitRatio(share.cached || 0, share.policy || "keep-first"));
    const most = scale.loop * loopRate(raw.gpu, rates.handover);
    const rate = Math.min(most, by * raw.rate);
    const allCached = (scale.cached * raw.rate) / (1 - raw.fetch_stall);
    const withAllCached = Math.max(rate, Math.min(most, raw.gpu, allCached));
    const prepStall = Math.max(0, rate / withAllCached - rate / raw.gpu);
    const fetchStall = 1 - rate / withAllCached;
    return {
      ...raw,
      rate,
      limit: limitOf(prepStall, fetchStall),
      prep_stall: prepStall,
      fetch_stall: fetchStall,
      low: Math.min(rate, by * raw.low),
      high: Math.max(rate, Math.min(most, by * raw.high)),
    };
  }

  // ---- whatif.py

  function asMeasured(profile) {
    return {
      workers: profile.workers,
      cores: null,
      cached: profile.cached,
      policy: "keep-first",
      storage_factor: 1,
      gpu_factor: 1,
      threads: profile.workers_kind === "threads",
      peers: 0, // a page is about one host
      network: null,
      prep: "host",
    };
  }

  function onCores(rates, share, count) {
    return { ...share, workers: count, cores: Math.max(count, share.cores || rates.cores) };
  }

  return { predict, forecast, asMeasured, onCores };
})();
