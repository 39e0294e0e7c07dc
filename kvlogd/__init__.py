"""kvlogd: tells which vLLM engine leaks KV cache, stalls or degrades, from the log it already writes."""

__version__ = "0.1.0"
