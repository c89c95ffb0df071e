-- wrk's own summary has no 99.9th percentile.
done = function(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format(
    "result: requests %d microseconds %d errors %d p50 %d p99 %d p99.9 %d\n",
    summary.requests, summary.duration, failed,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
