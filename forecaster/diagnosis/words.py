"""Names of the stages in English and Chinese, and what usually helps."""

from __future__ import annotations

from tocsin.domain.diagnosis import Verdict

STAGES = {
    Verdict.STORAGE: ("reading from storage", "从存储读取数据"),
    Verdict.CPU: ("the node's CPUs, which prepare its input", "准备输入数据的 CPU"),
    Verdict.HOST_TO_DEVICE: ("copies from the host to the GPU", "从主机到 GPU 的拷贝"),
    Verdict.DEVICE: ("the GPUs' own work", "GPU 自身的计算"),
    Verdict.BETWEEN_GPUS: ("communication between the GPUs", "GPU 之间的通信"),
    Verdict.DEVICE_TO_HOST: ("copies from the GPU to the host", "从 GPU 到主机的拷贝"),
}

REMEDIES = {
    Verdict.STORAGE: "cache or stage the data on local disks, read larger files in order, prefetch more",
    Verdict.CPU: "give the job more data-loader workers or CPUs, or move the preparation to the GPU or before the job",
    Verdict.HOST_TO_DEVICE: "pin host memory, overlap copies with kernels, send smaller types, check the link's width",
    Verdict.DEVICE: "nothing to mend around the GPUs: more or faster GPUs, or cheaper kernels, make it faster",
    Verdict.BETWEEN_GPUS: "overlap communication with work, raise the work per step, check links and placement",
    Verdict.DEVICE_TO_HOST: "write checkpoints and outputs asynchronously, keep results on the GPU, send less",
    Verdict.LEAK: "restart the job at its next checkpoint; look for tensors that are kept from step to step",
    Verdict.ORPHAN: "end the process that no longer shows, or reset the GPU once it is drained",
    Verdict.HELD_IDLE: "ask its owner to release it, or end the job by the site's policy",
    Verdict.STRANDED: "move the small jobs of the node together, so that whole nodes become free",
    Verdict.FLOOD: "limit the rate per client at the gateway, or scale the servers out",
    Verdict.LONG_REQUESTS: "bound output length and time per request, or give such work a queue of its own",
}
