/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Parts of random calls.
 */
#ifndef LEAP_FUZZ_H
#define LEAP_FUZZ_H

#include <pthread.h>
#include "selftest.h"

/* Openers, of which each two are neighbours: file and file ^ 1. */
#define N_FILES 4
#define PAGE 4096UL

/* A thread that makes calls. */
struct fuzzer {
	pthread_t thread;
	uint64_t random;
	unsigned long calls;
	/* Where it maps: nothing else is ever there, so that no call reaches the memory of others. */
	uint8_t *arena;
	/* A page before one that is not there. */
	uint8_t *edge;
};

union argument {
	struct leap_hello hello;
	struct leap_endpoint local;
	struct leap_peer peer;
	struct leap_dest dest;
	struct leap_wait wait;
	struct leap_send send;
	struct leap_reject reject;
	struct leap_bank_src src;
	struct leap_stats stats;
	uint64_t words[32];
};

uint64_t next(struct fuzzer *f);
uint32_t below(struct fuzzer *f, uint32_t n);
bool chance(struct fuzzer *f, uint32_t one_in);

/* Numbers at which something changes. */
uint64_t border(struct fuzzer *f);

/* An argument of a command for one of the files: one that may go well, then spoils it. */
void likely_argument(struct fuzzer *f, unsigned int command, uint32_t file, union argument *arg);
void damage(struct fuzzer *f, union argument *arg);

#endif
