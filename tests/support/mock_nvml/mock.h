/* What the parts of the mock share. README.md says what the script can say. */
#ifndef TOCSIN_MOCK_NVML_H
#define TOCSIN_MOCK_NVML_H

#include <nvml.h>
#include <stdatomic.h>
#include <stddef.h>

/* One constant per exported function, from the list of all functions. */
enum {
#define ONE(fn, out) FN_##fn,
#define ONE_BY(fn, arg, out) FN_##fn,
#define ONE_BY2(fn, arg1, arg2, out) FN_##fn,
#define TWO(fn, out1, out2) FN_##fn,
#define TEXT(fn) FN_##fn,
#define SPECIAL(fn) FN_##fn,
#include "functions.def"
#undef ONE
#undef ONE_BY
#undef ONE_BY2
#undef TWO
#undef TEXT
#undef SPECIAL
    FN_COUNT,
    FN_FIELD, /* the answers of field values, keyed by field and scope */
};

enum {
    MAX_NUMBERS = 24,
    TEXT_SIZE = 96,
    MAX_GPUS = 32,
    GLOBAL = -1,      /* gpu of what belongs to no GPU */
    WHOLE = -1,       /* mig of what belongs to the GPU itself */
};

#define ANY_SCOPE 0xFFFFFFFEu
#define UNKNOWN_MEMORY 0xFFFFFFFFFFFFFFFFull

typedef struct {
    unsigned long long u; /* as an integer, two's complement where negative */
    double d;
    long long step; /* what each answer adds, or the height of a wave */
    char wave;
} Number;

typedef struct {
    unsigned fn, a0, a1;
    int used;
    nvmlReturn_t code;
    unsigned type; /* nvmlValueType_t of a field */
    int count;
    unsigned asked;
    Number *numbers;
    char *text;
} Scripted;

/* One answer as a caller gets it. */
typedef struct {
    unsigned type;
    int count;
    unsigned long long u[MAX_NUMBERS];
    double d[MAX_NUMBERS];
    char text[TEXT_SIZE];
} Answer;

typedef struct {
    char set, hang, ignore;
    nvmlReturn_t code;
    unsigned times; /* how often the error comes; 0 = always */
    unsigned given;
    unsigned delay_us;
} Trouble;

typedef struct {
    int kind; /* 0 compute, 1 graphics, 2 MPS */
    unsigned pid, gi, ci;
    unsigned long long bytes;
} Process;

typedef struct {
    unsigned long long numbers[6]; /* pid, time stamp, SM, memory, encoder, decoder */
} Usage;

/* A GPU, one of its MIG devices, or what belongs to none. */
typedef struct {
    int gpu, mig;
    Scripted *table;
    unsigned slots, used;
    Trouble trouble[FN_COUNT], any;
    Process *processes;
    int process_count;
    Usage *usages;
    int usage_count;
    unsigned burst, bursts_given;
} Part;

typedef struct {
    int gpu;
    unsigned long long type, data;
    unsigned gi, ci;
} Event;

typedef struct {
    unsigned epoch;
    Part *parts;
    int part_count;
    Event *events;
    int event_count;
} World;

/* The control file, mapped by the library and by the tests. Layout known to tocsin_testing/mock_nvml.py. */
typedef struct {
    char name[64];
    _Atomic unsigned calls[MAX_GPUS + 2]; /* by GPU; then calls of no GPU, then calls with a bad handle */
} FunctionCounts;

typedef struct {
    char magic[8];
    _Atomic unsigned long long generation;
    _Atomic unsigned waiting;       /* threads that hang now */
    _Atomic unsigned stale_handles; /* uses of a handle from before a reload: the real library would crash */
    _Atomic unsigned opens, closes, broken, unused;
    FunctionCounts functions[];
} Control;

/* A handle is good for one opening of the library and one GPU or MIG device. */
typedef struct {
    unsigned magic, epoch;
    int gpu, mig;
} Handle;

/* script.c, under the lock; NULL and a line on stderr where the script cannot be read */
World *mock_parse(const char *path, const World *before);
void mock_forget(World *world);

/* world.c, under the lock */
Part *mock_part(World *world, int gpu, int mig);
Scripted *mock_find(Part *part, unsigned fn, unsigned a0, unsigned a1);
Scripted *mock_slot(Part *part, unsigned fn, unsigned a0, unsigned a1);
void mock_answer(Scripted *scripted, Answer *answer);
const char *mock_function_name(int fn);
int mock_function_index(const char *name);

/* state.c */
void mock_lock(void);
void mock_unlock(void);
World *mock_world(void); /* the current one, re-read where it changed; NULL where it cannot be read */
Control *mock_control(void);
nvmlReturn_t mock_opened(void);
nvmlReturn_t mock_open(void);
nvmlReturn_t mock_close(void);
void mock_pause(unsigned microseconds);
Handle *mock_handle(int gpu, int mig);
/* settings.c */
void mock_attach_settings(const char *script);
void mock_overlay(const Part *part, unsigned fn, unsigned a0, Answer *answer); /* what was set, over what is scripted */
/* instances.c: the first MIG device of a GPU instance, under the lock; WHOLE where there is none */
int mock_instance(int gpu, unsigned instance);
/* Counts the call, finds the part and lives through its trouble; holds the lock where it returns success. */
nvmlReturn_t mock_enter(int fn, nvmlDevice_t device, Part **part);
nvmlReturn_t mock_enter_global(int fn, Part **part);
/* The whole way of a plain function: enter, answer, leave. */
nvmlReturn_t mock_ask(int fn, nvmlDevice_t device, unsigned a0, unsigned a1, Answer *answer);
nvmlReturn_t mock_ask_global(int fn, unsigned a0, unsigned a1, Answer *answer);
nvmlReturn_t mock_take(Part *part, unsigned fn, unsigned a0, unsigned a1, Answer *answer);

#endif
