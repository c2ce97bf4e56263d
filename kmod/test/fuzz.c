// SPDX-License-Identifier: GPL-2.0
/*
 * Calls of all kinds, wrong ones above all: ioctls, mappings, and all other
 * operations of a file descriptor, by threads that share openers and by
 * processes that share mappings. The kernel has to survive them: its log, its
 * memory and the tests that run afterwards tell. Results that calls must
 * never have are checked here.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fuzz.h"

#define N_THREADS 4
#define NOBODY 65534
#define ARENA_BYTES (4UL * LEAP_MAP_BYTES)

static const unsigned int commands[] = {
	LEAP_IOC_HELLO, LEAP_IOC_SET_PORT, LEAP_IOC_SET_PEER, LEAP_IOC_SET_DEST, LEAP_IOC_WAIT_DATA,
	LEAP_IOC_SEND, LEAP_IOC_TX_BUSY, LEAP_IOC_REJECT, LEAP_IOC_GET_BANK_SRC, LEAP_IOC_STATS,
	LEAP_IOC_MOVE_PEER,
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

/* Shared by the threads of a process: descriptors, which others may close while one is used. */
static int files[N_FILES];
/* Openers that were set up with the right to, and stay. */
static int kept[N_FILES];
static bool is_root;
/* How many calls of each command went well. */
static unsigned long successes[N_COMMANDS];

static __thread sigjmp_buf way_back;
static __thread volatile sig_atomic_t is_touching;

/* Where the kernel finds the argument, or does not. */
static void *place(struct fuzzer *f, union argument *arg, size_t bytes)
{
	switch (below(f, 24)) {
	case 0:
		return NULL;
	case 1:
		return (void *)(uintptr_t)next(f);
	case 2:
		return (void *)(uintptr_t)border(f);
	case 3:
		/* The end is missing. */
		return f->edge + PAGE - below(f, bytes % PAGE + 2);
	case 4:
		/* The device's own memory, or none. */
		return f->arena + next(f) % (ARENA_BYTES - sizeof(*arg));
	default:
		return arg;
	}
}

static int file_at(uint32_t file)
{
	return __atomic_load_n(&files[file], __ATOMIC_RELAXED);
}

static int random_file(struct fuzzer *f)
{
	return file_at(below(f, N_FILES));
}

static bool needs_admin(unsigned int command)
{
	return command == LEAP_IOC_SET_PORT || command == LEAP_IOC_SET_PEER ||
	       command == LEAP_IOC_SET_DEST || command == LEAP_IOC_MOVE_PEER;
}

static void fuzz_ioctl(struct fuzzer *f)
{
	/* Most are those of frames. */
	uint32_t i = chance(f, 8) ? below(f, N_COMMANDS) : 4 + below(f, 5), file = below(f, N_FILES);
	unsigned int command = commands[i];
	union argument arg;
	bool is_ours = !chance(f, 6);
	int err;

	if (!is_ours && chance(f, 3))
		command = next(f);
	else if (!is_ours)
		command = _IOC(below(f, 4), LEAP_IOC_MAGIC, 0x3e + below(f, 14), border(f) % (1 << 14));
	likely_argument(f, command, file, &arg);
	if (chance(f, 5))
		damage(f, &arg);
	err = ioctl(file_at(file), command, place(f, &arg, _IOC_SIZE(command)));
	if (err)
		return;
	check(is_root || !needs_admin(command));
	if (is_ours)
		__atomic_add_fetch(&successes[i], 1, __ATOMIC_RELAXED);
}

static size_t random_bytes(struct fuzzer *f)
{
	switch (below(f, 4)) {
	case 0:
		return PAGE * (1 + below(f, 64));
	case 1:
		return LEAP_MAP_BYTES >> below(f, 4);
	default:
		return LEAP_MAP_BYTES;
	}
}

/* A range of the arena, often one that a mapping begins or ends with. */
static uint8_t *random_range(struct fuzzer *f, size_t *bytes)
{
	size_t at = (size_t)LEAP_MAP_BYTES * below(f, 4);

	*bytes = random_bytes(f);
	if (chance(f, 2))
		at += PAGE * below(f, LEAP_MAP_BYTES / PAGE);
	if (at + *bytes > ARENA_BYTES)
		*bytes = ARENA_BYTES - at;
	return f->arena + at;
}

/* Fills what a mapping has left, so that nothing else gets there. */
static void reserve(void *at, size_t bytes)
{
	check(mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == at);
}

static void fuzz_mmap(struct fuzzer *f)
{
	size_t bytes = LEAP_MAP_BYTES;
	uint8_t *at = f->arena + (size_t)LEAP_MAP_BYTES * below(f, 3);
	int prot = PROT_READ | PROT_WRITE, flags = MAP_SHARED;
	off_t offset = 0;
	void *map;

	if (chance(f, 4))
		at = random_range(f, &bytes);
	if (chance(f, 4))
		prot = below(f, 8);
	if (chance(f, 6))
		flags = MAP_PRIVATE;
	if (chance(f, 6))
		flags |= MAP_POPULATE | (chance(f, 2) ? MAP_LOCKED : 0);
	if (chance(f, 6))
		offset = chance(f, 2) ? (off_t)(border(f) & ~(PAGE - 1)) : (off_t)(PAGE * below(f, 8192));
	map = mmap(at, bytes, prot, flags | MAP_FIXED, random_file(f), offset);
	if (map == MAP_FAILED)
		reserve(at, bytes);
	else
		check(bytes == LEAP_MAP_BYTES && !offset && flags & MAP_SHARED && !(prot & PROT_EXEC));
}

static void fuzz_mprotect(struct fuzzer *f)
{
	size_t bytes;
	uint8_t *at = random_range(f, &bytes);

	mprotect(at, bytes, below(f, 8));
}

static void fuzz_mremap(struct fuzzer *f)
{
	size_t bytes, to_bytes;
	uint8_t *from = random_range(f, &bytes), *to = random_range(f, &to_bytes);
	bool is_move = chance(f, 2);
	void *map;

	if (is_move)
		map = mremap(from, bytes, to_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
	else
		map = mremap(from, bytes, to_bytes, 0);
	if (is_move && map != MAP_FAILED)
		reserve(from, bytes);
	else if (to_bytes < bytes)
		reserve(from + to_bytes, bytes - to_bytes);
	if (is_move && map == MAP_FAILED)
		reserve(to, to_bytes);
}

static void fuzz_advice(struct fuzzer *f)
{
	static const int advice[] = {
		MADV_DONTNEED, MADV_REMOVE, MADV_DONTFORK, MADV_DOFORK, MADV_WILLNEED, MADV_MERGEABLE,
		MADV_HUGEPAGE, MADV_DONTDUMP, MADV_DODUMP, MADV_FREE, MADV_COLD, MADV_PAGEOUT,
	};
	size_t bytes;
	uint8_t *at = random_range(f, &bytes);

	if (chance(f, 4))
		msync(at, bytes, MS_SYNC);
	else if (chance(f, 4))
		munlock(at, bytes);
	else
		madvise(at, bytes, advice[below(f, sizeof(advice) / sizeof(advice[0]))]);
}

static void on_fault(int number)
{
	if (is_touching)
		siglongjmp(way_back, number);
	_exit(100);
}

/* Reads and writes what is mapped: states of banks and slots above all. */
static void fuzz_memory(struct fuzzer *f)
{
	size_t bank = (size_t)LEAP_BANK_BYTES * below(f, ARENA_BYTES / LEAP_BANK_BYTES);
	uint8_t *at = f->arena + bank + (chance(f, 2) ? 0 : 8 * below(f, LEAP_BANK_BYTES / 8));

	if (sigsetjmp(way_back, 1) == 0) {
		is_touching = 1;
		if (chance(f, 2))
			*(volatile uint32_t *)at = chance(f, 2) ? below(f, 5) : border(f);
		else
			(void)*(volatile uint64_t *)at;
	}
	is_touching = 0;
}

/* The network reads, and writes, where the mapping is: it takes references to no such page. */
static void fuzz_references(struct fuzzer *f)
{
	size_t bytes;
	uint8_t *at = random_range(f, &bytes);
	struct iovec iov = { .iov_base = at, .iov_len = below(f, 9000) };
	int pipe_fd[2];

	if (pipe(pipe_fd))
		return;
	fcntl(pipe_fd[1], F_SETFL, O_NONBLOCK);
	vmsplice(pipe_fd[1], &iov, 1, SPLICE_F_NONBLOCK);
	if (write(pipe_fd[1], at, below(f, 9000)) > 0)
		(void)!read(pipe_fd[0], at, below(f, 9000));
	close(pipe_fd[0]);
	close(pipe_fd[1]);
}

static void greet(int fd)
{
	struct leap_hello hello = { .api_version = LEAP_API_VERSION };

	ioctl(fd, LEAP_IOC_HELLO, &hello);
}

/* One of a pair of neighbours on the loopback, so that frames come and go; without the right to it, none. */
static void set_up(int fd, uint32_t which)
{
	struct leap_endpoint local = endpoint("127.0.0.1", HERE + which);
	struct leap_peer peer = { .from = endpoint("127.0.0.1", HERE + (which ^ 1)), .session = 1 };
	struct leap_dest dest = { .to = peer.from, .session = 1 };

	ioctl(fd, LEAP_IOC_SET_PORT, &local);
	ioctl(fd, LEAP_IOC_SET_PEER, &peer);
	ioctl(fd, LEAP_IOC_SET_DEST, &dest);
}

static void fuzz_open(struct fuzzer *f)
{
	static const int flags[] = { O_RDWR, O_RDWR, O_RDWR, O_RDONLY, O_WRONLY, O_RDWR | O_NONBLOCK };
	uint32_t file = below(f, N_FILES);
	int fd, old;

	if (chance(f, 2))
		fd = dup(kept[file]);
	else if (chance(f, 3))
		fd = dup(random_file(f));
	else
		fd = open("/dev/leap_tensor", O_CLOEXEC | flags[below(f, 6)]);
	if (fd < 0 && !chance(f, 8))
		return;
	if (fd >= 0 && !chance(f, 4)) {
		greet(fd);
		set_up(fd, file);
	}
	old = __atomic_exchange_n(&files[file], fd, __ATOMIC_RELAXED);
	if (old >= 0)
		close(old);
}

static void fuzz_file(struct fuzzer *f)
{
	struct pollfd poll_fd = { .fd = random_file(f), .events = next(f) };
	uint8_t bytes[64];
	struct stat status;

	switch (below(f, 8)) {
	case 0:
		(void)!read(poll_fd.fd, bytes, sizeof(bytes));
		break;
	case 1:
		(void)!write(poll_fd.fd, bytes, sizeof(bytes));
		break;
	case 2:
		lseek(poll_fd.fd, border(f), below(f, 5));
		break;
	case 3:
		(void)!ftruncate(poll_fd.fd, border(f));
		break;
	case 4:
		fcntl(poll_fd.fd, F_SETFL, next(f) & (O_NONBLOCK | O_APPEND | O_ASYNC));
		break;
	case 5:
		fstat(poll_fd.fd, &status);
		fsync(poll_fd.fd);
		break;
	default:
		poll(&poll_fd, 1, chance(f, 8));
		break;
	}
}

/* A process that shares mappings and openers for a while, perhaps in a network of its own. */
static void fuzz_fork(struct fuzzer *f)
{
	bool is_away = chance(f, 4);
	sigset_t nudge;
	pid_t child;
	uint32_t i;

	/* A signal would make it begin anew, for ever. */
	sigemptyset(&nudge);
	sigaddset(&nudge, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &nudge, NULL);
	child = fork();
	pthread_sigmask(SIG_UNBLOCK, &nudge, NULL);
	if (child < 0)
		return;
	if (child == 0) {
		/* No other process ends long waits here. */
		alarm(1);
		if (is_away && unshare(CLONE_NEWNET) == 0)
			fuzz_open(f);
		for (i = 0; i < 8; i++) {
			fuzz_ioctl(f);
			fuzz_memory(f);
		}
		fuzz_mremap(f);
		_exit(0);
	}
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
}

static void fuzz_once(struct fuzzer *f)
{
	/* Mappings and openers cost thousands of times what other calls do. */
	uint32_t way = below(f, 4000);

	if (way < 3500)
		fuzz_ioctl(f);
	else if (way < 3700)
		fuzz_memory(f);
	else if (way < 3900)
		fuzz_file(f);
	else if (way < 3920)
		fuzz_references(f);
	else if (way < 3940)
		fuzz_advice(f);
	else if (way < 3955)
		fuzz_mprotect(f);
	else if (way < 3970)
		fuzz_mremap(f);
	else if (way < 3985)
		fuzz_mmap(f);
	else if (way < 3999)
		fuzz_open(f);
	else
		fuzz_fork(f);
}

static void *fuzz_thread(void *arg)
{
	struct fuzzer *f = arg;
	unsigned long i;

	for (i = 0; i < f->calls; i++)
		fuzz_once(f);
	return NULL;
}

static void on_nudge(int number)
{
	(void)number;
}

static void start(struct fuzzer *f, uint64_t seed, unsigned long calls)
{
	/* Never 0, which the generator would stay at. */
	*f = (struct fuzzer){ .random = seed * 0x9e3779b97f4a7c15ULL | 1, .calls = calls };
	f->arena = mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	check(f->arena != MAP_FAILED);
	f->edge = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(f->edge != MAP_FAILED && mprotect(f->edge + PAGE, PAGE, PROT_NONE) == 0);
}

static bool has_ended(struct fuzzer *f)
{
	return pthread_tryjoin_np(f->thread, NULL) == 0;
}

static void open_files(void)
{
	int i;

	for (i = 0; i < N_FILES; i++) {
		check((kept[i] = open("/dev/leap_tensor", O_RDWR)) >= 0);
		greet(kept[i]);
		set_up(kept[i], i);
		check((files[i] = dup(kept[i])) >= 0);
	}
}

static void run_threads(uint64_t seed, unsigned long calls)
{
	struct sigaction nudge = { .sa_handler = on_nudge }, fault = { .sa_handler = on_fault };
	struct fuzzer fuzzers[N_THREADS];
	uint32_t i;

	/* Ends what waits for long. */
	check(sigaction(SIGUSR1, &nudge, NULL) == 0);
	check(sigaction(SIGSEGV, &fault, NULL) == 0 && sigaction(SIGBUS, &fault, NULL) == 0);
	/* Small pages: little memory is touched in the arenas. */
	check(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGIO, SIG_IGN);
	for (i = 0; i < N_THREADS; i++)
		start(&fuzzers[i], seed * N_THREADS + i + 1, calls / N_THREADS);
	for (i = 0; i < N_THREADS; i++)
		check(pthread_create(&fuzzers[i].thread, NULL, fuzz_thread, &fuzzers[i]) == 0);
	for (i = 0; i < N_THREADS; i++) {
		while (!has_ended(&fuzzers[i])) {
			sleep_ms(10);
			pthread_kill(fuzzers[i].thread, SIGUSR1);
		}
	}
}

static void check_successes(unsigned long calls)
{
	uint32_t i;

	printf("fuzz: of each command went well:");
	for (i = 0; i < N_COMMANDS; i++)
		printf(" %lu", successes[i]);
	printf("\n");
	/* A few calls may miss one. */
	for (i = 0; i < N_COMMANDS && calls >= 10000; i++)
		check(successes[i] > 0 || (!is_root && needs_admin(commands[i])));
}

/* Calls by root, then by a user who has the openers, and may open the device. */
int fuzz(uint64_t seed, unsigned long calls)
{
	int status;
	pid_t child;

	check(chmod("/dev/leap_tensor", 0666) == 0);
	for (is_root = true;; is_root = false) {
		child = fork();
		if (child == 0) {
			open_files();
			if (!is_root)
				check(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
			run_threads(seed + !is_root, calls / 2);
			check_successes(calls);
			exit(0);
		}
		check(waitpid(child, &status, 0) == child);
		printf("fuzz: %lu calls by %s, seed %llu: %s\n", calls / 2, is_root ? "root" : "another user",
		       (unsigned long long)seed, status ? "failed" : "ok");
		check(status == 0);
		if (!is_root)
			break;
	}
	check(chmod("/dev/leap_tensor", 0660) == 0);
	return 0;
}
