option task = {name: "tocsin fleet_1m", every: 10m, offset: 1m}

from(bucket: "fleet")
  |> range(start: -2h)
  |> filter(fn: (r) => r._measurement == "gpu" and r._field =~ /^(MEANS)$/)
  |> aggregateWindow(every: 1m, fn: mean, createEmpty: false, timeSrc: "_start")
  |> to(bucket: "fleet_1m", org: "gpu")

from(bucket: "fleet")
  |> range(start: -2h)
  |> filter(fn: (r) => (r._measurement == "gpu" and r._field !~ /^(MEANS)$/) or r._measurement == "gpu_missing" or r._measurement == "gpu_owner")
  |> aggregateWindow(every: 1m, fn: last, createEmpty: false, timeSrc: "_start")
  |> to(bucket: "fleet_1m", org: "gpu")
