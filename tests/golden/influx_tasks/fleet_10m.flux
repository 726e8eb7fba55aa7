option task = {name: "tocsin fleet_10m", every: 1h, offset: 5m}

from(bucket: "fleet_1m")
  |> range(start: -4h)
  |> filter(fn: (r) => r._measurement == "gpu" and r._field =~ /^(MEANS)$/)
  |> aggregateWindow(every: 10m, fn: mean, createEmpty: false, timeSrc: "_start")
  |> to(bucket: "fleet_10m", org: "gpu")

from(bucket: "fleet_1m")
  |> range(start: -4h)
  |> filter(fn: (r) => (r._measurement == "gpu" and r._field !~ /^(MEANS)$/) or r._measurement == "gpu_missing" or r._measurement == "gpu_owner")
  |> aggregateWindow(every: 10m, fn: last, createEmpty: false, timeSrc: "_start")
  |> to(bucket: "fleet_10m", org: "gpu")

from(bucket: "fleet")
  |> range(start: -4h)
  |> filter(fn: (r) => r._measurement == "gpu_event")
  |> to(bucket: "fleet_10m", org: "gpu")

from(bucket: "fleet")
  |> range(start: -4h)
  |> filter(fn: (r) => r._measurement == "gpu_info")
  |> aggregateWindow(every: 10m, fn: last, createEmpty: false, timeSrc: "_start")
  |> to(bucket: "fleet_10m", org: "gpu")
