-- For wrk, whose own summary has no 99.9th percentile: one line, times in microseconds.
done = function(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format(
    "result: requests %d microseconds %d errors %d min %d mean %.1f deviation %.1f max %d",
    summary.requests, summary.duration, failed, latency.min, latency.mean, latency.stdev, latency.max))
  for _, percentile in ipairs({50, 75, 90, 95, 99, 99.9, 99.99}) do
    io.write(string.format(" p%g %d", percentile, latency:percentile(percentile)))
  end
  io.write("\n")
end
