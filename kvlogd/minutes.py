"""SQL that makes the rows of `minutes` from samples, and one row of several.

Knows the columns' names, and nothing else. Promises that merging rows gives what their samples together would have
given; a mean that only some of the records have is weighted by all of its minute's records.
"""


def of_samples(condition: str) -> str:
    """Return the query that makes rows of `minutes` from the samples that meet a condition.

    Means are rounded to what the log's numbers are good for: they compress to a third.
    """
    return f"""SELECT time_bucket(INTERVAL 1 MINUTE, ts) AS minute, engine_id, run_id, count(*) AS n,
  min(kv_usage) AS kv_usage_min, round(avg(kv_usage), 5) AS kv_usage_avg, max(kv_usage) AS kv_usage_max,
  min(running) AS running_min, round(avg(running), 2) AS running_avg, max(running) AS running_max,
  min(waiting) AS waiting_min, round(avg(waiting), 2) AS waiting_avg, max(waiting) AS waiting_max,
  round(avg(prompt_tps), 1) AS prompt_tps_avg, round(avg(generation_tps), 1) AS generation_tps_avg,
  sum(preemptions)::BIGINT AS preemptions, round(avg(prefix_hit_rate), 4) AS prefix_hit_rate_avg
FROM samples WHERE {condition} GROUP BY 1, 2, 3"""  # noqa: S608


def merged(source: str) -> str:
    """Return the query that makes one row of those of `source` that are of one minute and life."""
    return f"""SELECT minute, engine_id, run_id, sum(n)::BIGINT AS n,
  min(kv_usage_min) AS kv_usage_min, {mean("kv_usage")}, max(kv_usage_max) AS kv_usage_max,
  min(running_min) AS running_min, {mean("running")}, max(running_max) AS running_max,
  min(waiting_min) AS waiting_min, {mean("waiting")}, max(waiting_max) AS waiting_max,
  {mean("prompt_tps")}, {mean("generation_tps")},
  sum(preemptions)::BIGINT AS preemptions, {mean("prefix_hit_rate")}
FROM ({source}) GROUP BY minute, engine_id, run_id"""  # noqa: S608


def mean(name: str) -> str:
    """Return the SQL for a mean of means, each weighted by its records."""
    return f"sum({name}_avg * n) / sum(CASE WHEN {name}_avg IS NOT NULL THEN n END) AS {name}_avg"
