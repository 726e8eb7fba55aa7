/* Lists whose length the caller must find out: processes, utilisation of processes, retired pages. */
#include "mock.h"

#include <stdio.h>
#include <string.h>

static unsigned count_of(const Part *part, int kind)
{
    unsigned count = 0;
    for (int i = 0; i < part->process_count; i++)
        count += part->processes[i].kind == kind;
    return count;
}

/* `room` is what the caller has, then what there is. While a burst lasts, more have come than the caller made room for. */
static nvmlReturn_t fit(Part *part, unsigned *room, unsigned present, const void *array)
{
    unsigned given = *room;
    *room = present;
    if (given && array && part->bursts_given < part->burst) {
        part->bursts_given++;
        *room = 2 * given + 1;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    return present > given || (present && !array) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t processes(int fn, nvmlDevice_t device, int kind, unsigned *room, nvmlProcessInfo_v2_t *infos)
{
    Part *part;
    nvmlReturn_t code = mock_enter(fn, device, &part);
    if (code != NVML_SUCCESS)
        return code;
    code = fit(part, room, count_of(part, kind), infos);
    for (int i = 0; code == NVML_SUCCESS && i < part->process_count; i++)
        if (part->processes[i].kind == kind) {
            const Process *process = &part->processes[i];
            *infos++ = (nvmlProcessInfo_v2_t){process->pid, process->bytes, process->gi, process->ci};
        }
    mock_unlock();
    return code;
}

#define PROCESSES(fn, kind)                                                                                            \
    nvmlReturn_t fn(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_v2_t *infos)                             \
    {                                                                                                                  \
        return processes(FN_##fn, device, kind, count, infos);                                                         \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 0)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 0)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, 2)

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *room, unsigned long long last_seen)
{
    Part *part;
    nvmlReturn_t code = mock_enter(FN_nvmlDeviceGetProcessUtilization, device, &part);
    if (code != NVML_SUCCESS)
        return code;
    unsigned present = 0;
    for (int i = 0; i < part->usage_count; i++)
        present += part->usages[i].numbers[1] > last_seen;
    code = present ? fit(part, room, present, samples) : NVML_ERROR_NOT_FOUND;
    for (int i = 0; code == NVML_SUCCESS && i < part->usage_count; i++) {
        const unsigned long long *n = part->usages[i].numbers;
        if (n[1] > last_seen)
            *samples++ = (nvmlProcessUtilizationSample_t){(unsigned)n[0], n[1],           (unsigned)n[2],
                                                          (unsigned)n[3], (unsigned)n[4], (unsigned)n[5]};
    }
    mock_unlock();
    return code;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    Answer answer;
    nvmlReturn_t code = mock_ask_global(FN_nvmlSystemGetProcessName, pid, 0, &answer);
    if (code == NVML_SUCCESS)
        snprintf(name, length, "%s", answer.text);
    return code == NVML_ERROR_NOT_SUPPORTED ? NVML_ERROR_NOT_FOUND : code;
}

static nvmlReturn_t pages(int fn, nvmlDevice_t device, unsigned cause, unsigned *room, unsigned long long *addresses,
                          unsigned long long *stamps)
{
    Answer answer;
    nvmlReturn_t code = mock_ask(fn, device, cause, 0, &answer);
    if (code != NVML_SUCCESS)
        return code;
    unsigned given = *room, present = (unsigned)answer.u[0]; /* the script gives their number alone */
    *room = present;
    if (present > given)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; addresses && i < present; i++) {
        addresses[i] = 0x1000ull * (i + 1);
        if (stamps)
            stamps[i] = i;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *addresses)
{
    return pages(FN_nvmlDeviceGetRetiredPages, device, (unsigned)cause, count, addresses, NULL);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                          unsigned long long *addresses, unsigned long long *stamps)
{
    return pages(FN_nvmlDeviceGetRetiredPages_v2, device, (unsigned)cause, count, addresses, stamps);
}

/* Clocks that can be locked, fastest first, as scripted. */
static nvmlReturn_t clocks(int fn, nvmlDevice_t device, unsigned a0, unsigned *room, unsigned *values)
{
    Answer answer;
    nvmlReturn_t code = mock_ask(fn, device, a0, 0, &answer);
    if (code != NVML_SUCCESS)
        return code;
    unsigned given = *room;
    *room = (unsigned)answer.count;
    if (given < *room || !values)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (int i = 0; i < answer.count; i++)
        values[i] = (unsigned)answer.u[i];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *values)
{
    return clocks(FN_nvmlDeviceGetSupportedMemoryClocks, device, 0, count, values);
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory, unsigned int *count,
                                                  unsigned int *values)
{
    return clocks(FN_nvmlDeviceGetSupportedGraphicsClocks, device, memory, count, values);
}
