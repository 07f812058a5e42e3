-- One short chat request, as an impatient client sends it.
wrk.method = "POST"
wrk.path = "/v1/chat/completions"
wrk.headers["Content-Type"] = "application/json"
if os.getenv("KEY") then
    wrk.headers["Authorization"] = "Bearer " .. os.getenv("KEY")
end
wrk.body = '{"model":"bench","max_tokens":1,"messages":[{"role":"user","content":"Hello"}]}'

done = function(summary, latency)
    io.write(string.format("RESULT %.0f %.2f %.2f %d\n", summary.requests / summary.duration * 1e6,
        latency:percentile(50) / 1000, latency:percentile(99) / 1000,
        summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.timeout))
end
