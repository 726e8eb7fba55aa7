/* Functions that hand out numbers and texts just as they are scripted. */
#include "mock.h"

#include <string.h>

static nvmlReturn_t text_of(int fn, nvmlDevice_t device, char *text, unsigned length)
{
    Answer answer;
    nvmlReturn_t code = mock_ask(fn, device, 0, 0, &answer);
    if (code != NVML_SUCCESS)
        return code;
    if (strlen(answer.text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(text, answer.text, strlen(answer.text) + 1);
    return NVML_SUCCESS;
}

#define ASK(fn, a0, a1, ...)                                                                                           \
    Answer answer;                                                                                                     \
    nvmlReturn_t code = mock_ask(FN_##fn, device, (unsigned)(a0), (unsigned)(a1), &answer);                            \
    if (code == NVML_SUCCESS) {                                                                                        \
        __VA_ARGS__                                                                                                    \
    }                                                                                                                  \
    return code;

#define ONE(fn, out)                                                                                                   \
    nvmlReturn_t fn(nvmlDevice_t device, out *value) { ASK(fn, 0, 0, *value = (out)answer.u[0];) }
#define ONE_BY(fn, arg, out)                                                                                           \
    nvmlReturn_t fn(nvmlDevice_t device, arg a0, out *value) { ASK(fn, a0, 0, *value = (out)answer.u[0];) }
#define ONE_BY2(fn, arg1, arg2, out)                                                                                   \
    nvmlReturn_t fn(nvmlDevice_t device, arg1 a0, arg2 a1, out *value) { ASK(fn, a0, a1, *value = (out)answer.u[0];) }
#define TWO(fn, out1, out2)                                                                                            \
    nvmlReturn_t fn(nvmlDevice_t device, out1 *first, out2 *second)                                                    \
    {                                                                                                                  \
        ASK(fn, 0, 0, *first = (out1)answer.u[0]; *second = (out2)answer.u[1];)                                        \
    }
#define TEXT(fn)                                                                                                       \
    nvmlReturn_t fn(nvmlDevice_t device, char *text, unsigned int length)                                              \
    {                                                                                                                  \
        return text_of(FN_##fn, device, text, length);                                                                 \
    }
#define SPECIAL(fn)

#include "functions.def"

nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    return text_of(FN_nvmlDeviceGetGspFirmwareVersion, device, version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                             nvmlEccCounterType_t counter, nvmlMemoryLocation_t location,
                                             unsigned long long *value)
{
    ASK(nvmlDeviceGetMemoryErrorCounter, type, (unsigned)counter | (unsigned)location << 16, *value = answer.u[0];)
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failure)
{
    ASK(nvmlDeviceGetRemappedRows, 0, 0, *correctable = (unsigned)answer.u[0]; *uncorrectable = (unsigned)answer.u[1];
        *pending = (unsigned)answer.u[2]; *failure = (unsigned)answer.u[3];)
}
