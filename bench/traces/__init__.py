"""Labelled logs of a simulated vLLM: `classes` draws a plan, `server` runs it, `logline` writes it as vLLM 0.32 would.

Deterministic in (seed, class, index). Promises the scheduler's arithmetic (blocks, tokens, queue, preemption) and the
printing of its stats lines. Does not promise the traffic of any real site: figures from it rank designs.
"""
