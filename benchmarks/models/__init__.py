"""Networks of the benchmarks, written for published weights."""
