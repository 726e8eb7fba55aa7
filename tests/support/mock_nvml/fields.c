/* Batched field values and GPM. */
#include "mock.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLE_MAGIC = 0x47504D53 };

typedef struct {
    unsigned magic, epoch;
    int gpu, mig, taken;
} Sample;

static void put(nvmlFieldValue_t *entry, const Answer *answer)
{
    memset(&entry->value, 0xEE, sizeof entry->value); /* whoever reads the wrong member sees nonsense */
    entry->valueType = (nvmlValueType_t)answer->type;
    switch (answer->type) {
    case 0: entry->value.dVal = answer->d[0]; break;
    case 1: entry->value.uiVal = (unsigned)answer->u[0]; break;
    case 2: entry->value.ulVal = (unsigned long)answer->u[0]; break;
    case 3: entry->value.ullVal = answer->u[0]; break;
    case 4: entry->value.sllVal = (long long)answer->u[0]; break;
    case 5: entry->value.siVal = (int)answer->u[0]; break;
    case 6: entry->value.usVal = (unsigned short)answer->u[0]; break;
    default: entry->value.ullVal = answer->u[0]; break;
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    Part *part;
    Answer answer;
    nvmlReturn_t code = mock_enter(FN_nvmlDeviceGetFieldValues, device, &part);
    if (code != NVML_SUCCESS)
        return code;
    for (int i = 0; i < count; i++) {
        nvmlFieldValue_t *entry = &values[i];
        Scripted *scripted = mock_find(part, FN_FIELD, entry->fieldId, entry->scopeId);
        if (!scripted)
            scripted = mock_find(part, FN_FIELD, entry->fieldId, ANY_SCOPE);
        entry->nvmlReturn = scripted ? scripted->code : NVML_ERROR_NOT_SUPPORTED;
        entry->timestamp = 0;
        entry->latencyUsec = 3;
        if (entry->nvmlReturn == NVML_SUCCESS) {
            mock_answer(scripted, &answer);
            put(entry, &answer);
        } else {
            memset(&entry->value, 0xEE, sizeof entry->value);
        }
    }
    mock_unlock();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *out)
{
    Answer answer;
    if (out->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t code = mock_ask(FN_nvmlGpmQueryDeviceSupport, device, 0, 0, &answer);
    if (code == NVML_SUCCESS)
        out->isSupportedDevice = (unsigned)answer.u[0];
    return code;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *out)
{
    Part *part;
    nvmlReturn_t code = mock_enter_global(FN_nvmlGpmSampleAlloc, &part);
    if (code != NVML_SUCCESS)
        return code;
    Sample *sample = calloc(1, sizeof *sample);
    sample->magic = SAMPLE_MAGIC;
    *out = (nvmlGpmSample_t)(void *)sample;
    mock_unlock();
    return NVML_SUCCESS;
}

static Sample *sample_of(nvmlGpmSample_t given)
{
    Sample *sample = (Sample *)(void *)given;
    return sample && sample->magic == SAMPLE_MAGIC ? sample : NULL;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t given)
{
    Part *part;
    nvmlReturn_t code = mock_enter_global(FN_nvmlGpmSampleFree, &part);
    if (code != NVML_SUCCESS)
        return code;
    Sample *sample = sample_of(given);
    if (sample)
        sample->magic = 0; /* kept, so that a use after this is told, not crashed upon */
    mock_unlock();
    return sample ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t take_sample(int fn, nvmlDevice_t device, int instance, nvmlGpmSample_t given)
{
    Part *part;
    nvmlReturn_t code = mock_enter(fn, device, &part);
    if (code != NVML_SUCCESS)
        return code;
    Sample *sample = sample_of(given);
    Scripted *support = mock_find(part, FN_nvmlGpmQueryDeviceSupport, 0, 0);
    if (!sample)
        code = NVML_ERROR_INVALID_ARGUMENT;
    else if (!support || !support->count || !support->numbers[0].u)
        code = NVML_ERROR_NOT_SUPPORTED;
    else
        *sample = (Sample){SAMPLE_MAGIC, mock_world()->epoch, part->gpu, instance, 1};
    mock_unlock();
    return code;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    return take_sample(FN_nvmlGpmSampleGet, device, WHOLE, sample);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int instance, nvmlGpmSample_t sample)
{
    const Handle *handle = (const Handle *)(const void *)device;
    mock_lock();
    int mig = handle ? mock_instance(handle->gpu, instance) : WHOLE;
    mock_unlock();
    if (mig == WHOLE)
        return NVML_ERROR_NOT_FOUND;
    return take_sample(FN_nvmlGpmMigSampleGet, device, mig, sample);
}

static void measure(Part *part, nvmlGpmMetric_t *metric)
{
    static char name[] = "metric", unit[] = "";
    Answer answer;
    Scripted *scripted = mock_find(part, FN_nvmlGpmMetricsGet, metric->metricId, 0);
    metric->nvmlReturn = scripted ? scripted->code : NVML_ERROR_NOT_SUPPORTED;
    metric->metricInfo.shortName = metric->metricInfo.longName = name;
    metric->metricInfo.unit = unit;
    if (metric->nvmlReturn == NVML_SUCCESS) {
        mock_answer(scripted, &answer);
        metric->value = answer.d[0];
    }
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    Part *part;
    if (get->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t code = mock_enter_global(FN_nvmlGpmMetricsGet, &part);
    if (code != NVML_SUCCESS)
        return code;
    Sample *first = sample_of(get->sample1), *second = sample_of(get->sample2);
    int same = first && second && first != second && first->taken && second->taken && first->gpu == second->gpu &&
               first->mig == second->mig && first->epoch == second->epoch && get->numMetrics <= NVML_GPM_METRIC_MAX;
    part = same ? mock_part(mock_world(), first->gpu, first->mig) : NULL;
    for (unsigned i = 0; part && i < get->numMetrics; i++)
        measure(part, &get->metrics[i]);
    mock_unlock();
    return part ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
