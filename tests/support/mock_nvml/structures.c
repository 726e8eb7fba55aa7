/* Functions that fill a structure. The script gives its numbers in the order that README.md names. */
#include "mock.h"

#include <stdio.h>
#include <string.h>

static nvmlReturn_t ask(int fn, nvmlDevice_t device, Answer *answer)
{
    memset(answer, 0, sizeof *answer);
    return mock_ask(fn, device, 0, 0, answer);
}

#define FILL(fn, ...)                                                                                                  \
    Answer answer;                                                                                                     \
    nvmlReturn_t code = ask(FN_##fn, device, &answer);                                                                 \
    if (code == NVML_SUCCESS) {                                                                                        \
        const unsigned long long *u = answer.u;                                                                        \
        (void)u;                                                                                                       \
        __VA_ARGS__                                                                                                    \
    }                                                                                                                  \
    return code;

#define EXPECT_VERSION(given, expected)                                                                                \
    if ((given) != (expected))                                                                                         \
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    FILL(nvmlDeviceGetPciInfo_v3, memset(pci, 0, sizeof *pci);
         snprintf(pci->busId, sizeof pci->busId, "%.31s", answer.text);
         snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%.15s", strlen(answer.text) > 4 ? answer.text + 4 : "");
         sscanf(answer.text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);)
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    FILL(nvmlDeviceGetAttributes_v2,
         *out = ((nvmlDeviceAttributes_t){(unsigned)u[0], (unsigned)u[1], (unsigned)u[2], (unsigned)u[3],
                                          (unsigned)u[4], (unsigned)u[5], (unsigned)u[6], (unsigned)u[7], u[8]});)
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
    EXPECT_VERSION(out->version, NVML_STRUCT_VERSION(Temperature, 1))
    Answer answer;
    nvmlReturn_t code = mock_ask(FN_nvmlDeviceGetTemperatureV, device, (unsigned)out->sensorType, 0, &answer);
    if (code == NVML_SUCCESS)
        out->temperature = (int)answer.u[0];
    return code;
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *out)
{
    EXPECT_VERSION(out->version, nvmlMarginTemperature_v1)
    FILL(nvmlDeviceGetMarginTemperature, out->marginTemperature = (int)u[0];)
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *out)
{
    Answer answer;
    nvmlReturn_t code = mock_ask(FN_nvmlDeviceGetViolationStatus, device, (unsigned)policy, 0, &answer);
    if (code == NVML_SUCCESS)
        *out = (nvmlViolationTime_t){answer.u[0], answer.u[1]};
    return code;
}

nvmlReturn_t nvmlDeviceGetFanSpeedRPM(nvmlDevice_t device, nvmlFanSpeedInfo_t *out)
{
    EXPECT_VERSION(out->version, nvmlFanSpeedInfo_v1)
    Answer answer;
    nvmlReturn_t code = mock_ask(FN_nvmlDeviceGetFanSpeedRPM, device, out->fan, 0, &answer);
    if (code == NVML_SUCCESS)
        out->speed = (unsigned)answer.u[0];
    return code;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    FILL(nvmlDeviceGetUtilizationRates, out->gpu = (unsigned)u[0]; out->memory = (unsigned)u[1];)
}

/* Script: total reserved free used. The old structure has no `reserved` and counts it as used, as drivers do. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    FILL(nvmlDeviceGetMemoryInfo, out->total = u[0]; out->free = u[2]; out->used = u[3] + u[1];)
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    EXPECT_VERSION(out->version, nvmlMemory_v2)
    FILL(nvmlDeviceGetMemoryInfo_v2, out->total = u[0]; out->reserved = u[1]; out->free = u[2]; out->used = u[3];)
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    FILL(nvmlDeviceGetBAR1MemoryInfo, out->bar1Total = u[0]; out->bar1Used = u[1]; out->bar1Free = u[0] - u[1];)
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *out)
{
    FILL(nvmlDeviceGetMemoryLimits_v1, out->softLimit = u[0]; out->hardLimit = u[1]; out->currentUsed = u[2];)
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                            nvmlEccCounterType_t counter, nvmlEccErrorCounts_t *out)
{
    Answer answer;
    nvmlReturn_t code =
        mock_ask(FN_nvmlDeviceGetDetailedEccErrors, device, (unsigned)type, (unsigned)counter, &answer);
    if (code == NVML_SUCCESS)
        *out = (nvmlEccErrorCounts_t){answer.u[0], answer.u[1], answer.u[2], answer.u[3]};
    return code;
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *out)
{
    EXPECT_VERSION(out->version, nvmlEccSramErrorStatus_v1)
    FILL(nvmlDeviceGetSramEccErrorStatus,
         *out = ((nvmlEccSramErrorStatus_t){out->version, u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9],
                                            u[10], (unsigned)u[11]});)
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *out)
{
    FILL(nvmlDeviceGetRowRemapperHistogram,
         *out = ((nvmlRowRemapperHistogramValues_t){(unsigned)u[0], (unsigned)u[1], (unsigned)u[2], (unsigned)u[3],
                                                    (unsigned)u[4]});)
}

nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *out)
{
    EXPECT_VERSION(out->version, nvmlRepairStatus_v1)
    FILL(nvmlDeviceGetRepairStatus, out->bChannelRepairPending = (unsigned)u[0];
         out->bTpcRepairPending = (unsigned)u[1];)
}

nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, nvmlUnrepairableMemoryStatus_v1_t *out)
{
    FILL(nvmlDeviceGetUnrepairableMemoryFlag_v1, out->bUnrepairableMemory = (unsigned)u[0];)
}

nvmlReturn_t nvmlDeviceGetGpuUptime_v1(nvmlDevice_t device, nvmlGpuUptime_v1_t *out)
{
    FILL(nvmlDeviceGetGpuUptime_v1, out->uptime = (unsigned)u[0];)
}

nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *out)
{
    FILL(nvmlDeviceGetC2cModeInfoV, out->isC2cEnabled = (unsigned)u[0];)
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
    FILL(nvmlDeviceGetGpuFabricInfo, memset(out, 0, sizeof *out); out->state = (nvmlGpuFabricState_t)u[0];
         out->status = (nvmlReturn_t)u[1]; out->cliqueId = (unsigned)u[2];)
}

/* Script: state status clique mask health newest-version cluster, whose UUID is that byte 16 times. */
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out)
{
    unsigned version = out->version >> 24, asked = out->version;
    FILL(
        nvmlDeviceGetGpuFabricInfoV, unsigned newest = answer.count > 5 ? (unsigned)u[5] : 3;
        if (version > newest || (asked != nvmlGpuFabricInfo_v3 && asked != nvmlGpuFabricInfo_v2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
        memset(out->clusterUuid, answer.count > 6 ? (int)u[6] : 0, sizeof out->clusterUuid);
        out->state = (nvmlGpuFabricState_t)u[0];
        out->status = (nvmlReturn_t)u[1]; out->cliqueId = (unsigned)u[2]; out->healthMask = (unsigned)u[3];
        if (version >= 3) out->healthSummary = (unsigned char)u[4];)
}
