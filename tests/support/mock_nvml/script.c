/* Reads a script into a world. */
#include "mock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    nvmlReturn_t code;
} CODES[] = {
    {"OK", NVML_SUCCESS},
    {"UNINITIALIZED", NVML_ERROR_UNINITIALIZED},
    {"INVALID_ARGUMENT", NVML_ERROR_INVALID_ARGUMENT},
    {"NOT_SUPPORTED", NVML_ERROR_NOT_SUPPORTED},
    {"NO_PERMISSION", NVML_ERROR_NO_PERMISSION},
    {"NOT_FOUND", NVML_ERROR_NOT_FOUND},
    {"INSUFFICIENT_SIZE", NVML_ERROR_INSUFFICIENT_SIZE},
    {"DRIVER_NOT_LOADED", NVML_ERROR_DRIVER_NOT_LOADED},
    {"TIMEOUT", NVML_ERROR_TIMEOUT},
    {"IRQ_ISSUE", NVML_ERROR_IRQ_ISSUE},
    {"FUNCTION_NOT_FOUND", NVML_ERROR_FUNCTION_NOT_FOUND},
    {"CORRUPTED_INFOROM", NVML_ERROR_CORRUPTED_INFOROM},
    {"GPU_IS_LOST", NVML_ERROR_GPU_IS_LOST},
    {"RESET_REQUIRED", NVML_ERROR_RESET_REQUIRED},
    {"OPERATING_SYSTEM", NVML_ERROR_OPERATING_SYSTEM},
    {"LIB_RM_VERSION_MISMATCH", NVML_ERROR_LIB_RM_VERSION_MISMATCH},
    {"IN_USE", NVML_ERROR_IN_USE},
    {"MEMORY", NVML_ERROR_MEMORY},
    {"NO_DATA", NVML_ERROR_NO_DATA},
    {"ARGUMENT_VERSION_MISMATCH", NVML_ERROR_ARGUMENT_VERSION_MISMATCH},
    {"DEPRECATED", NVML_ERROR_DEPRECATED},
    {"NOT_READY", NVML_ERROR_NOT_READY},
    {"GPU_NOT_FOUND", NVML_ERROR_GPU_NOT_FOUND},
    {"INVALID_STATE", NVML_ERROR_INVALID_STATE},
    {"UNKNOWN", NVML_ERROR_UNKNOWN},
};

static const char *const TYPES[] = {"double", "uint", "ulong", "ull", "sll", "int", "ushort"};

static int code_of(const char *name, nvmlReturn_t *code)
{
    char *end;
    long number = strtol(name, &end, 10);
    if (*name && !*end) {
        *code = (nvmlReturn_t)number;
        return 1;
    }
    for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++)
        if (strcmp(CODES[i].name, name) == 0) {
            *code = CODES[i].code;
            return 1;
        }
    return 0;
}

/* "123", "-5", "0x10", "0.5", "?" for all ones; "+n" behind it grows by n an answer, "~n" goes up and down by n. */
static int number_of(const char *word, Number *number)
{
    char *end;
    *number = (Number){0};
    if (strcmp(word, "?") == 0) {
        number->u = UNKNOWN_MEMORY;
        number->d = (double)UNKNOWN_MEMORY;
        return 1;
    }
    if (strchr(word, '.')) {
        number->d = strtod(word, &end);
        number->u = number->d < 0 ? (unsigned long long)(long long)number->d : (unsigned long long)number->d;
    } else if (*word == '-') {
        long long value = strtoll(word, &end, 0);
        number->u = (unsigned long long)value;
        number->d = (double)value;
    } else {
        number->u = strtoull(word, &end, 0);
        number->d = (double)number->u;
    }
    if (end != word && (*end == '+' || *end == '~')) {
        number->wave = *end == '~';
        number->step = strtoll(end + 1, &end, 0);
    }
    return end != word && !*end;
}

typedef struct {
    World *world;
    int part;
    const char *problem;
} Reader;

static Part *here(Reader *reader) { return &reader->world->parts[reader->part]; }

static int part_index(World *world, int gpu, int mig)
{
    Part *found = mock_part(world, gpu, mig);
    if (!found) {
        world->parts = realloc(world->parts, (size_t)(world->part_count + 1) * sizeof *world->parts);
        found = &world->parts[world->part_count++];
        memset(found, 0, sizeof *found);
        found->gpu = gpu;
        found->mig = mig;
    }
    return (int)(found - world->parts);
}

enum { MAX_WORDS = 40 };

static int numbers_of(Reader *reader, char **words, int count, unsigned long long *out, int least, int most)
{
    if (count < least || count > most) {
        reader->problem = "wrong number of words";
        return 0;
    }
    for (int i = 0; i < count; i++) {
        Number number;
        if (!number_of(words[i], &number)) {
            reader->problem = "not a number";
            return 0;
        }
        out[i] = number.u;
    }
    return 1;
}

static void read_answer(Reader *reader, Scripted *scripted, char **words, int count, const char *text)
{
    free(scripted->numbers);
    free(scripted->text);
    scripted->text = NULL;
    scripted->numbers = NULL;
    scripted->code = NVML_SUCCESS;
    scripted->count = 0;
    if (count && *words[0] == '!') {
        if (!code_of(words[0] + 1, &scripted->code))
            reader->problem = "unknown error code";
        return;
    }
    Number numbers[MAX_NUMBERS];
    while (scripted->count < count && scripted->count < MAX_NUMBERS &&
           number_of(words[scripted->count], &numbers[scripted->count]))
        scripted->count++;
    if (scripted->count) {
        scripted->numbers = malloc((size_t)scripted->count * sizeof *numbers);
        memcpy(scripted->numbers, numbers, (size_t)scripted->count * sizeof *numbers);
    }
    if (scripted->count < count || *text)
        scripted->text = strdup(text);
}

static void read_call(Reader *reader, char **words, int head, int count, const char *text)
{
    unsigned long long arguments[3] = {0, 0, 0};
    int fn = mock_function_index(words[0]);
    if (fn < 0) {
        reader->problem = "no such function in the mock";
        return;
    }
    if (!numbers_of(reader, words + 1, head - 1, arguments, 0, 3))
        return;
    unsigned second = (unsigned)(arguments[1] | arguments[2] << 16);
    Scripted *scripted = mock_slot(here(reader), (unsigned)fn, (unsigned)arguments[0], second);
    read_answer(reader, scripted, words + head, count - head, text);
}

static void read_field(Reader *reader, char **words, int head, int count, const char *text)
{
    unsigned long long arguments[2] = {0, ANY_SCOPE};
    if (head < 2 || !numbers_of(reader, words + 1, head - 1, arguments, 1, 2)) {
        reader->problem = "field ID [SCOPE] : TYPE VALUE | !CODE";
        return;
    }
    Scripted *scripted = mock_slot(here(reader), FN_FIELD, (unsigned)arguments[0], (unsigned)arguments[1]);
    if (count > head && *words[head] == '!') {
        read_answer(reader, scripted, words + head, count - head, text);
        return;
    }
    for (unsigned type = 0; count == head + 2 && type < sizeof TYPES / sizeof *TYPES; type++)
        if (strcmp(TYPES[type], words[head]) == 0) {
            read_answer(reader, scripted, words + head + 1, 1, "");
            scripted->type = type;
            return;
        }
    unsigned long long type;
    if (count == head + 2 && numbers_of(reader, words + head, 1, &type, 1, 1)) {
        read_answer(reader, scripted, words + head + 1, 1, ""); /* a type of tomorrow, by its number */
        scripted->type = (unsigned)type;
        return;
    }
    reader->problem = "unknown type of value";
}

static Trouble *trouble_of(Reader *reader, const char *name)
{
    if (strcmp(name, "*") == 0)
        return &here(reader)->any;
    int fn = mock_function_index(name);
    if (fn < 0)
        reader->problem = "no such function in the mock";
    return fn < 0 ? NULL : &here(reader)->trouble[fn];
}

static void read_trouble(Reader *reader, char **words, int count)
{
    unsigned long long number = 0;
    Trouble *trouble = count > 1 ? trouble_of(reader, words[1]) : NULL;
    if (!trouble) {
        reader->problem = reader->problem ? reader->problem : "names no function";
        return;
    }
    trouble->set = 1;
    if (strcmp(words[0], "hang") == 0)
        trouble->hang = 1;
    else if (strcmp(words[0], "ignore") == 0)
        trouble->ignore = 1;
    else if (strcmp(words[0], "delay") == 0 && numbers_of(reader, words + 2, count - 2, &number, 1, 1))
        trouble->delay_us = (unsigned)number;
    else if (strcmp(words[0], "error") == 0) {
        if (count < 3 || !code_of(words[2], &trouble->code))
            reader->problem = "unknown error code";
        else if (count > 3 && numbers_of(reader, words + 3, count - 3, &number, 1, 1))
            trouble->times = (unsigned)number;
    }
}

static void read_process(Reader *reader, char **words, int count)
{
    static const char *const KINDS[] = {"compute", "graphics", "mps"};
    unsigned long long numbers[4] = {0, 0, 0xFFFFFFFF, 0xFFFFFFFF};
    Part *part = here(reader);
    for (int kind = 0; kind < 3; kind++) {
        if (count < 4 || strcmp(words[1], KINDS[kind]) != 0)
            continue;
        if (!numbers_of(reader, words + 2, count - 2, numbers, 2, 4))
            return;
        part->processes = realloc(part->processes, (size_t)(part->process_count + 1) * sizeof *part->processes);
        part->processes[part->process_count++] =
            (Process){kind, (unsigned)numbers[0], (unsigned)numbers[2], (unsigned)numbers[3], numbers[1]};
        return;
    }
    reader->problem = "process compute|graphics|mps PID BYTES [GI CI]";
}

static void read_usage(Reader *reader, char **words, int count)
{
    Part *part = here(reader);
    Usage usage;
    if (!numbers_of(reader, words + 1, count - 1, usage.numbers, 6, 6))
        return;
    part->usages = realloc(part->usages, (size_t)(part->usage_count + 1) * sizeof *part->usages);
    part->usages[part->usage_count++] = usage;
}

static void read_event(Reader *reader, char **words, int count)
{
    World *world = reader->world;
    unsigned long long n[5] = {0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF};
    if (!numbers_of(reader, words + 1, count - 1, n, 3, 5))
        return;
    world->events = realloc(world->events, (size_t)(world->event_count + 1) * sizeof *world->events);
    world->events[world->event_count++] = (Event){(int)n[0], n[1], n[2], (unsigned)n[3], (unsigned)n[4]};
}

static void read_line(Reader *reader, char **words, int head, int count, const char *text)
{
    unsigned long long number = 0;
    const char *word = words[0];
    if (head < count || *text) {
        if (strcmp(word, "field") == 0)
            read_field(reader, words, head, count, text);
        else
            read_call(reader, words, head, count, text);
    } else if (strcmp(word, "gpu") == 0) {
        if (!numbers_of(reader, words + 1, count - 1, &number, 1, 1))
            return;
        if (number >= MAX_GPUS)
            reader->problem = "GPU numbers go from 0 to 31";
        else
            reader->part = part_index(reader->world, (int)number, WHOLE);
    } else if (strcmp(word, "mig") == 0) {
        if (numbers_of(reader, words + 1, count - 1, &number, 1, 1))
            reader->part = part_index(reader->world, here(reader)->gpu, (int)number);
    } else if (strcmp(word, "epoch") == 0) {
        if (numbers_of(reader, words + 1, count - 1, &number, 1, 1))
            reader->world->epoch = (unsigned)number;
    } else if (strcmp(word, "burst") == 0) {
        if (numbers_of(reader, words + 1, count - 1, &number, 1, 1))
            here(reader)->burst = (unsigned)number;
    } else if (strcmp(word, "lost") == 0) {
        here(reader)->any = (Trouble){.set = 1, .code = NVML_ERROR_GPU_IS_LOST};
    } else if (strcmp(word, "process") == 0) {
        read_process(reader, words, count);
    } else if (strcmp(word, "usage") == 0) {
        read_usage(reader, words, count);
    } else if (strcmp(word, "event") == 0) {
        read_event(reader, words, count);
    } else if (strcmp(word, "error") == 0 || strcmp(word, "hang") == 0 || strcmp(word, "delay") == 0 ||
               strcmp(word, "ignore") == 0) {
        read_trouble(reader, words, count);
    } else {
        reader->problem = "unknown line";
    }
}

static void split_line(Reader *reader, char *line)
{
    char *words[MAX_WORDS], *saved = NULL, text[TEXT_SIZE] = "";
    int count = 0, head;
    line[strcspn(line, "\n")] = 0;
    if (*line == '#')
        return;
    char *colon = strstr(line, " : ");
    if (colon) {
        *colon = 0;
        snprintf(text, sizeof text, "%s", colon + 3);
    }
    for (char *word = strtok_r(line, " ", &saved); word && count < MAX_WORDS; word = strtok_r(NULL, " ", &saved))
        words[count++] = word;
    head = count;
    if (colon)
        for (char *word = strtok_r(colon + 3, " ", &saved); word && count < MAX_WORDS; word = strtok_r(NULL, " ", &saved))
            words[count++] = word;
    if (count)
        read_line(reader, words, head, count, text);
}

/* Counts go on where a part and an answer are in both worlds: a rewritten script must not look like a reset. */
static void take_over(World *world, const World *before)
{
    for (int i = 0; i < world->part_count; i++) {
        Part *part = &world->parts[i], *old = mock_part((World *)before, part->gpu, part->mig);
        if (!old)
            continue;
        part->bursts_given = old->bursts_given < part->burst ? old->bursts_given : part->burst;
        for (unsigned slot = 0; slot < part->slots; slot++) {
            Scripted *now = &part->table[slot];
            Scripted *then = now->used ? mock_find(old, now->fn, now->a0, now->a1) : NULL;
            if (then)
                now->asked = then->asked;
        }
    }
}

void mock_forget(World *world)
{
    for (int i = 0; i < world->part_count; i++) {
        Part *part = &world->parts[i];
        for (unsigned slot = 0; slot < part->slots; slot++) {
            free(part->table[slot].numbers);
            free(part->table[slot].text);
        }
        free(part->table);
        free(part->processes);
        free(part->usages);
    }
    free(world->parts);
    free(world->events);
    free(world);
}

World *mock_parse(const char *path, const World *before)
{
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "mock NVML: no script at %s\n", path);
        return NULL;
    }
    World *world = calloc(1, sizeof *world);
    Reader reader = {world, 0, NULL};
    char line[1024], copy[1024];
    part_index(world, GLOBAL, WHOLE);
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        snprintf(copy, sizeof copy, "%s", line);
        split_line(&reader, line);
        if (reader.problem) {
            fprintf(stderr, "mock NVML: %s:%d: %s: %s", path, number, reader.problem, copy);
            fclose(file);
            mock_forget(world);
            return NULL;
        }
    }
    fclose(file);
    if (before)
        take_over(world, before);
    return world;
}
