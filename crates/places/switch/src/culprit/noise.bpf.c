/* What keeps the switch's workers from running: operating system noise, as the kernel's osnoise tracer calls it, on the
 * CPUs where workers run or are to run.
 *
 *   sched_waking, sched_wakeup ─▶ `workers`: since when it is to run; `cpus`: where
 *   sched_switch               ─▶ what ran there meanwhile: another task, or nothing (an idle CPU that came late)
 *   softirq, interrupt         ─▶ how long they took there
 *   hrtimer_expire             ─▶ a timer that an idle CPU heard late; what the host took of the CPU's time
 *        │
 *        └─ those that took `shortest` or longer ─▶ `intervals`: the latest 4096, for the agent to fetch
 *
 * An event on another CPU costs a look into `cpus` and two comparisons.
 */
#include "noise.h"

#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* Most workers of a switch. */
#define WORKERS 64

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_info {
	__u32 cpu;
};

/* What the host took of a CPU's time, ns: seen at each switch, or (where the kernel is built so) at ticks. */
struct rq {
	__u64 prev_steal_time;
	__u64 prev_steal_time_rq;
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
};

struct task_struct {
	struct thread_info thread_info;
	struct sched_entity se;
	unsigned int __state;
	int pid;
	int tgid;
	char comm[NAME];
};

struct irqaction {
	const char *name;
};

struct timerqueue_node {
	__s64 expires;
};

struct hrtimer {
	struct timerqueue_node node;
};

#pragma clang attribute pop

/* Process id of the switch. */
const volatile __u32 process;
/* What takes less is not noted, ns. */
const volatile __u64 shortest;

/* Since when a worker is to run, ns; 0 where it runs or sleeps. And where it ran last, the CPU's number + 1. */
struct worker {
	__u64 waits;
	__u32 cpu;
	__u32 unused;
};

/* A CPU. Written by itself, and by the CPU that wakes a worker there or takes it elsewhere. */
struct cpu {
	/* Number + 1 of the worker that runs here, ran here last, or is to run here; 0 where there is none. */
	__u32 worker;
	__u32 unused;
	/* Since when that worker is to run here; 0 where it runs or sleeps. */
	__u64 waits;
	/* When the task that runs began to. */
	__u64 switched;
	/* When the softirq and the interrupt began that run; 0 where none does. */
	__u64 softirq;
	__u64 interrupt;
	/* What the host had taken, and when that was asked. */
	__u64 stolen;
	__u64 asked;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WORKERS);
	__type(key, __u32);
	__type(value, struct worker);
} workers SEC(".maps");

/* By the CPU's number: who loads it gives it as many as there are. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 4096);
	__uint(value_size, sizeof(struct interval));
} intervals SEC(".maps");

/* The worker's number, of its thread's name (worker-N); -1 of other threads. */
static __always_inline int number_of(const struct task_struct *task)
{
	char name[NAME] = {};
	int number;

	if ((__u32)task->tgid != process)
		return -1;
	bpf_probe_read_kernel(name, sizeof(name), task->comm);
	if (name[0] != 'w' || name[1] != 'o' || name[2] != 'r' || name[3] != 'k' || name[4] != 'e' ||
	    name[5] != 'r' || name[6] != '-')
		return -1;
	if (name[7] < '0' || name[7] > '9')
		return -1;
	number = name[7] - '0';
	if (name[8] >= '0' && name[8] <= '9')
		number = 10 * number + name[8] - '0';
	return number < WORKERS ? number : -1;
}

static __always_inline struct worker *worker(__u32 number)
{
	return bpf_map_lookup_elem(&workers, &number);
}

static __always_inline struct cpu *cpu(__u32 number)
{
	return bpf_map_lookup_elem(&cpus, &number);
}

/* This CPU, where it is a worker's. */
static __always_inline struct cpu *of_worker(void)
{
	struct cpu *here = cpu(bpf_get_smp_processor_id());

	return here && here->worker ? here : NULL;
}

static __always_inline struct interval interval(const struct cpu *here, __u64 from, __u64 to, enum noise kind)
{
	struct interval new = {
		.from = from,
		.to = to,
		.kind = kind,
		.worker = here->worker - 1,
		.cpu = bpf_get_smp_processor_id(),
	};

	return new;
}

/* The oldest makes room. */
static __always_inline void note(struct interval *new)
{
	bpf_map_push_elem(&intervals, new, BPF_EXIST);
}

/* What the host took since that was last asked: of the time right before now. */
static __always_inline void ask_for_stolen(struct cpu *here, __u64 now)
{
	const struct task_struct *task = bpf_get_current_task_btf();
	__u64 before = here->stolen, asked = here->asked, stolen;

	if (bpf_core_field_exists(struct rq, prev_steal_time_rq))
		stolen = task->se.cfs_rq->rq->prev_steal_time_rq;
	else if (bpf_core_field_exists(struct rq, prev_steal_time))
		stolen = task->se.cfs_rq->rq->prev_steal_time;
	else
		return;

	here->stolen = stolen;
	here->asked = now;
	/* What was taken before the first question, and a lie of the host. */
	if (!asked || stolen < before || stolen - before < shortest)
		return;
	__u64 took = stolen - before;
	__u64 from = took < now - asked ? now - took : asked;
	struct interval new = interval(here, from, now, NOISE_STOLEN);

	note(&new);
}

/* A worker that was on another CPU is on this one from now on. */
static __always_inline void moves(struct worker *moved, __u32 number, __u32 to)
{
	struct cpu *before = moved->cpu && moved->cpu != to + 1 ? cpu(moved->cpu - 1) : NULL;

	moved->cpu = to + 1;
	if (!before || before->worker != number + 1)
		return;
	before->worker = 0;
	before->waits = 0;
	/* Their ends are not seen while no worker is there: they must not count once one is there again. */
	before->softirq = 0;
	before->interrupt = 0;
	before->asked = 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(waking, struct task_struct *task)
{
	int number = number_of(task);
	struct worker *woken = number < 0 ? NULL : worker(number);

	if (woken && !woken->waits)
		woken->waits = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(wakeup, struct task_struct *task)
{
	int number = number_of(task);
	struct worker *woken = number < 0 ? NULL : worker(number);
	struct cpu *there = woken ? cpu(task->thread_info.cpu) : NULL;

	if (!there)
		return 0;
	moves(woken, number, task->thread_info.cpu);
	there->worker = number + 1;
	/* Also of a worker that is still running, since it was about to sleep: `switched` knows that it ran. */
	there->waits = woken->waits ? woken->waits : bpf_ktime_get_ns();
	return 0;
}

/* A worker runs here from now on. */
static __always_inline void runs(struct cpu *here, __u32 number)
{
	struct worker *next = worker(number);

	if (!next)
		return;
	moves(next, number, bpf_get_smp_processor_id());
	next->waits = 0;
	here->worker = number + 1;
	here->waits = 0;
}

/* A worker runs here no longer; it is to run on, or sleeps. */
static __always_inline void stops(struct cpu *here, __u32 number, int is_to_run, __u64 now)
{
	struct worker *prev = worker(number);

	if (!prev)
		return;
	prev->waits = is_to_run ? now : 0;
	if (is_to_run)
		here->worker = number + 1;
	if (here->worker == number + 1)
		here->waits = prev->waits;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switched, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct cpu *here = cpu(bpf_get_smp_processor_id());
	int from = number_of(prev), to = number_of(next);

	if (!here || (!here->worker && from < 0 && to < 0))
		return 0;
	__u64 now = bpf_ktime_get_ns();

	/* Not where the worker itself ran. */
	if (here->worker && here->waits && from + 1 != (int)here->worker) {
		__u64 began = here->waits > here->switched ? here->waits : here->switched;

		if (now - began >= shortest && began < now) {
			struct interval new =
				interval(here, began, now, prev->pid ? NOISE_TASK : NOISE_IDLE);

			new.pid = prev->pid;
			bpf_probe_read_kernel(new.name, sizeof(new.name), prev->comm);
			note(&new);
		}
	}
	if (here->worker)
		ask_for_stolen(here, now);
	here->switched = now;
	if (to >= 0)
		runs(here, to);
	if (from >= 0)
		stops(here, from, preempt || !prev->__state, now);
	return 0;
}

/* Names the task that runs. */
static __always_inline void name_task(struct interval *new, const struct cpu *here)
{
	struct task_struct *task = bpf_get_current_task_btf();

	new->pid = task->pid;
	new->own = number_of(task) + 1 == (int)here->worker;
	bpf_probe_read_kernel(new->name, sizeof(new->name), task->comm);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(softirq_begins, unsigned int vector)
{
	struct cpu *here = of_worker();

	if (here)
		here->softirq = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(softirq_ends, unsigned int vector)
{
	struct cpu *here = of_worker();

	if (!here || !here->softirq)
		return 0;
	__u64 now = bpf_ktime_get_ns(), began = here->softirq;

	here->softirq = 0;
	if (now - began < shortest)
		return 0;
	struct interval new = interval(here, began, now, NOISE_SOFTIRQ);

	new.number = vector;
	name_task(&new, here);
	note(&new);
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(interrupt_begins, int number, struct irqaction *action)
{
	struct cpu *here = of_worker();

	if (here)
		here->interrupt = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(interrupt_ends, int number, struct irqaction *action)
{
	struct cpu *here = of_worker();

	if (!here || !here->interrupt)
		return 0;
	__u64 now = bpf_ktime_get_ns(), began = here->interrupt;

	here->interrupt = 0;
	if (now - began < shortest)
		return 0;
	struct interval new = interval(here, began, now, NOISE_INTERRUPT);

	new.number = number;
	bpf_probe_read_kernel_str(new.name, sizeof(new.name), action->name);
	note(&new);
	return 0;
}

SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(timer_begins, struct hrtimer *timer, __s64 *at)
{
	struct cpu *here = of_worker();
	__s64 time = 0;

	/* Only of a CPU that was idle is it known what the timer was late for. */
	if (!here || (__u32)bpf_get_current_pid_tgid())
		return 0;
	bpf_probe_read_kernel(&time, sizeof(time), at);
	/* Both by the timer's own clock. */
	__s64 late = time - timer->node.expires;

	if (late < (__s64)shortest)
		return 0;
	__u64 now = bpf_ktime_get_ns();
	struct interval new = interval(here, now - late, now, NOISE_IDLE);

	note(&new);
	return 0;
}

SEC("tp_btf/hrtimer_expire_exit")
int BPF_PROG(timer_ends, struct hrtimer *timer)
{
	struct cpu *here = of_worker();

	/* After the tick, which is when the kernel counts it. */
	if (here)
		ask_for_stolen(here, bpf_ktime_get_ns());
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
