// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of the module that one board can do over its loopback, as root.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "selftest.h"

struct port sender, receiver;

void open_pair(const char *address, uint32_t first_seq)
{
	sender = port_at(address, PEER);
	receiver = port_at(address, HERE);
	check(port_from(&receiver, address, PEER, SESSION, first_seq) == 0);
	port_to(&sender, address, HERE, SESSION);
}

void close_pair(void)
{
	port_close(&sender);
	port_close(&receiver);
}

uint32_t deliver(uint32_t seq, uint32_t bytes)
{
	uint32_t slot = seq % LEAP_BANKS, bank;
	struct leap_send send = frame_send(slot, seq, bytes);

	fill_frame(slot_bytes(&sender, slot), bytes, seq);
	send = port_send(&sender, send);
	check(send.sent == send.n_chunks);
	check(port_wait(&receiver, 1000000, &bank) == 0);
	check(bank == seq % LEAP_BANKS);
	check(bank_meta(&receiver, bank)->seq == seq);
	check(bank_meta(&receiver, bank)->frame_bytes == bytes);
	check(is_frame(bank_bytes(&receiver, bank), bytes, seq));
	return bank;
}

static void an_unknown_version_is_refused(void)
{
	struct leap_hello hello = { .api_version = LEAP_API_VERSION + 1 };
	struct leap_stats stats;
	int fd = open("/dev/leap_tensor", O_RDWR);

	check(fd >= 0);
	refused(ioctl(fd, LEAP_IOC_STATS, &stats), EPROTO);
	check(mmap(NULL, LEAP_MAP_BYTES, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	refused(ioctl(fd, LEAP_IOC_HELLO, &hello), EPROTONOSUPPORT);
	check(hello.api_version == LEAP_API_VERSION && hello.map_bytes == LEAP_MAP_BYTES);
	refused(ioctl(fd, LEAP_IOC_STATS, &stats), EPROTO);
	close(fd);
}

static bool maps(int fd, size_t bytes, int prot, int flags, off_t offset)
{
	void *map = mmap(NULL, bytes, prot, flags, fd, offset);

	if (map == MAP_FAILED)
		return false;
	munmap(map, bytes);
	return true;
}

static void a_mapping_is_whole_and_shared(void)
{
	const int rw = PROT_READ | PROT_WRITE;
	struct port port = port_open();

	check(maps(port.fd, LEAP_MAP_BYTES, rw, MAP_SHARED, 0));
	check(!maps(port.fd, LEAP_MAP_BYTES, rw, MAP_PRIVATE, 0));
	check(!maps(port.fd, LEAP_MAP_BYTES, rw | PROT_EXEC, MAP_SHARED, 0));
	check(!maps(port.fd, LEAP_MAP_BYTES + 4096, rw, MAP_SHARED, 0));
	check(!maps(port.fd, LEAP_MAP_BYTES - 4096, rw, MAP_SHARED, 0));
	check(!maps(port.fd, LEAP_MAP_BYTES, rw, MAP_SHARED, 4096));
	check(!maps(port.fd, 4096, rw, MAP_SHARED, LEAP_MAP_BYTES));
	refused(mprotect(port.map, LEAP_MAP_BYTES, PROT_READ | PROT_EXEC), EACCES);
	port_close(&port);
}

static void a_mapping_outlives_close(void)
{
	uint32_t seq = 5;

	open_pair("127.0.0.1", seq);
	check(close(receiver.fd) == 0);
	fill_frame(slot_bytes(&sender, seq), 5000, seq);
	port_send(&sender, frame_send(seq, seq, 5000));
	sleep_ms(20);
	check(bank_meta(&receiver, seq)->state == LEAP_BANK_READY);
	check(is_frame(bank_bytes(&receiver, seq), 5000, seq));
	check(munmap(receiver.map, LEAP_MAP_BYTES) == 0);
	port_send(&sender, frame_send(seq, seq, 5000));
	port_close(&sender);
}

static void configuring_needs_the_capability(void)
{
	struct leap_endpoint local = endpoint("127.0.0.1", HERE);
	struct leap_peer peer = { .from = local, .session = 1 };
	struct leap_dest dest = { .to = local, .session = 1 };
	struct port port = port_open();
	uint32_t bank;
	int status;
	pid_t child = fork();

	if (child == 0) {
		check(setgid(65534) == 0 && setuid(65534) == 0);
		refused(ioctl(port.fd, LEAP_IOC_SET_PORT, &local), EPERM);
		refused(ioctl(port.fd, LEAP_IOC_SET_PEER, &peer), EPERM);
		refused(ioctl(port.fd, LEAP_IOC_SET_DEST, &dest), EPERM);
		refused(port_wait(&port, 0, &bank), ETIME);
		refused(open("/dev/leap_tensor", O_RDWR), EACCES);
		_exit(0);
	}
	check(waitpid(child, &status, 0) == child && status == 0);
	port_close(&port);
}

static void a_port_has_one_opener_in_a_namespace(void)
{
	struct leap_endpoint local = endpoint("127.0.0.1", HERE);
	struct port one = port_at("127.0.0.1", HERE), two = port_open();
	int status;
	pid_t child;

	refused(ioctl(two.fd, LEAP_IOC_SET_PORT, &local), EADDRINUSE);
	refused(ioctl(one.fd, LEAP_IOC_SET_PORT, &local), EISCONN);
	child = fork();
	if (child == 0) {
		check(unshare(CLONE_NEWNET) == 0);
		two = port_at("127.0.0.1", HERE);
		check(port_from(&two, "127.0.0.1", PEER, SESSION, 0) == 0);
		_exit(0);
	}
	check(waitpid(child, &status, 0) == child && status == 0);
	port_close(&one);
	check(ioctl(two.fd, LEAP_IOC_SET_PORT, &local) == 0);
	port_close(&two);
}

static void only_so_many_open_it(void)
{
	int fds[8], i;

	for (i = 0; i < 8; i++)
		check((fds[i] = open("/dev/leap_tensor", O_RDWR)) >= 0);
	refused(open("/dev/leap_tensor", O_RDWR), EBUSY);
	for (i = 0; i < 8; i++)
		close(fds[i]);
}

static void bad_arguments_are_refused(void)
{
	struct leap_bank_src src = { .bank = LEAP_BANKS };
	struct leap_reject reject = { .bank = LEAP_BANKS };
	struct leap_endpoint local = endpoint("127.0.0.1", 0);
	struct leap_peer peer = { .from = endpoint("127.0.0.1", 0), .session = SESSION };
	struct leap_dest dest = { .to = endpoint("127.0.0.1", HERE), .session = 0 };
	struct leap_send send = frame_send(0, 0, 1400);
	struct port port = port_open();

	refused(ioctl(port.fd, LEAP_IOC_SET_PEER, &peer), ENOTCONN);
	refused(ioctl(port.fd, LEAP_IOC_SET_DEST, &dest), ENOTCONN);
	refused(ioctl(port.fd, LEAP_IOC_SET_PORT, &local), EINVAL);
	local = endpoint("127.0.0.1", HERE);
	local.family = AF_UNIX;
	refused(ioctl(port.fd, LEAP_IOC_SET_PORT, &local), EINVAL);
	local.family = AF_INET;
	check(ioctl(port.fd, LEAP_IOC_SET_PORT, &local) == 0);
	refused(ioctl(port.fd, LEAP_IOC_SET_PEER, &peer), EINVAL);
	if (has_ipv6()) {
		/* The opener's own address is of the other family. */
		peer.from = endpoint("::1", PEER);
		refused(ioctl(port.fd, LEAP_IOC_SET_PEER, &peer), EINVAL);
	}
	refused(ioctl(port.fd, LEAP_IOC_SET_DEST, &dest), EINVAL);
	refused(ioctl(port.fd, LEAP_IOC_SEND, &send), ENOTCONN);
	port_to(&port, "127.0.0.1", PEER, SESSION);
#define BAD(field, value)						     \
	do {								     \
		send = frame_send(0, 0, 1400);				     \
		send.field = (value);					     \
		refused(ioctl(port.fd, LEAP_IOC_SEND, &send), EINVAL);	     \
	} while (0)
	BAD(slot, LEAP_BANKS);
	BAD(slot, ~0U);
	BAD(watch, LEAP_BANKS);
	BAD(n_chunks, 0);
	BAD(n_chunks, 2);
	BAD(n_chunks, ~0U);
	BAD(frame_bytes, 0);
	BAD(frame_bytes, 1401);
	BAD(frame_bytes, ~0U);
	BAD(reserved, 1);
#undef BAD
	send = frame_send(0, 0, LEAP_FRAME_MAX + 1);
	refused(ioctl(port.fd, LEAP_IOC_SEND, &send), EINVAL);
	refused(ioctl(port.fd, LEAP_IOC_GET_BANK_SRC, &src), EINVAL);
	refused(ioctl(port.fd, LEAP_IOC_REJECT, &reject), EINVAL);
	reject.bank = 0;
	refused(ioctl(port.fd, LEAP_IOC_REJECT, &reject), ESTALE);
	src.bank = 0;
	refused(ioctl(port.fd, LEAP_IOC_GET_BANK_SRC, &src), ENODATA);
	refused(ioctl(port.fd, LEAP_IOC_STATS, (void *)8), EFAULT);
	refused(ioctl(port.fd, LEAP_IOC_SEND, (void *)8), EFAULT);
	refused(ioctl(port.fd, _IO('L', 0x7f), 0), ENOTTY);
	refused(ioctl(port.fd, _IOWR('L', 0x40, char[4096]), &send), ENOTTY);
	port_close(&port);
}

static void frames_of_all_sizes_arrive(const char *address)
{
	static const uint32_t sizes[] = { 1, 1399, 1400, 1401, 16384, LEAP_FRAME_MAX };
	uint32_t i, bank, first = -3, n = sizeof(sizes) / sizeof(sizes[0]);
	struct leap_bank_src src;
	struct leap_stats stats;

	open_pair(address, first);
	for (i = 0; i < 40 * n; i++) {
		bank = deliver(first + i, sizes[i % n]);
		src.bank = bank;
		check(ioctl(receiver.fd, LEAP_IOC_GET_BANK_SRC, &src) == 0);
		check(src.session == SESSION && src.from.port == htons(PEER));
		check(src.seq == first + i);
		bank_release(&receiver, bank);
	}
	stats = port_stats(&receiver);
	check(stats.rx_frames == 40 * n);
	check(stats.rx_malformed + stats.rx_bad_checksum + stats.rx_old + stats.rx_ahead == 0);
	close_pair();
}

static void frames_arrive_over_ipv4(void)
{
	frames_of_all_sizes_arrive("127.0.0.1");
}

static void frames_arrive_over_ipv6(void)
{
	if (has_ipv6())
		frames_of_all_sizes_arrive("::1");
	else
		printf("(not in this kernel) ");
}

static void *send_slowly(void *arg)
{
	uint32_t seq;

	for (seq = 0; seq < 100; seq++) {
		sleep_ms(3);
		fill_frame(slot_bytes(&sender, seq % LEAP_BANKS), 16384, seq);
		port_send(&sender, frame_send(seq % LEAP_BANKS, seq, 16384));
	}
	return arg;
}

static void one_frame_is_one_wake_up(void)
{
	struct leap_stats stats;
	pthread_t thread;
	uint32_t seq, bank;

	open_pair("127.0.0.1", 0);
	check(pthread_create(&thread, NULL, send_slowly, NULL) == 0);
	for (seq = 0; seq < 100; seq++) {
		check(port_wait(&receiver, 1000000, &bank) == 0);
		check(is_frame(bank_bytes(&receiver, bank), 16384, seq));
		bank_release(&receiver, bank);
	}
	check(pthread_join(thread, NULL) == 0);
	stats = port_stats(&receiver);
	check(stats.rx_datagrams == 1200 && stats.wakeups <= 100 && stats.wakeups > 50);
	close_pair();
}

static void a_held_bank_is_not_written(void)
{
	struct pollfd poll_fd;
	struct leap_stats stats;
	uint32_t bank;

	open_pair("127.0.0.1", 7);
	bank = deliver(7, 3000);
	poll_fd = (struct pollfd){ .fd = receiver.fd, .events = POLLIN };
	check(poll(&poll_fd, 1, 0) == 0);
	fill_frame(slot_bytes(&sender, 1), 3000, 99);
	port_send(&sender, frame_send(1, 7, 3000));
	port_send(&sender, frame_send(1, 7 + LEAP_BANKS, 3000));
	port_send(&sender, frame_send(1, 7 - LEAP_BANKS, 3000));
	stats = port_stats(&receiver);
	check(stats.rx_duplicate == 3 && stats.rx_ahead == 3 && stats.rx_old == 3);
	check(bank_meta(&receiver, bank)->state == LEAP_BANK_HELD);
	check(is_frame(bank_bytes(&receiver, bank), 3000, 7));
	refused(port_wait(&receiver, 0, &bank), ETIME);
	bank_release(&receiver, 7);
	deliver(7 + LEAP_BANKS, 3000);
	/* User space may take a ready bank by itself. */
	port_send(&sender, frame_send(0, 8, 100));
	check(poll(&poll_fd, 1, 1000) == 1 && poll_fd.revents == POLLIN);
	check(bank_meta(&receiver, 8)->state == LEAP_BANK_READY);
	__atomic_store_n(&bank_meta(&receiver, 8)->state, LEAP_BANK_HELD, __ATOMIC_RELEASE);
	check(poll(&poll_fd, 1, 0) == 0);
	refused(port_wait(&receiver, 0, &bank), ETIME);
	bank_release(&receiver, 8);
	deliver(8 + LEAP_BANKS, 200);
	close_pair();
}

static void the_oldest_frame_comes_first(void)
{
	uint32_t i, bank, first = -2;

	open_pair("127.0.0.1", first);
	for (i = 4; i-- > 0;) {
		fill_frame(slot_bytes(&sender, i), 100, first + i);
		port_send(&sender, frame_send(i, first + i, 100));
	}
	for (i = 0; i < 4; i++) {
		check(port_wait(&receiver, 0, &bank) == 0);
		check(bank_meta(&receiver, bank)->seq == first + i);
	}
	close_pair();
}

static void rejected_chunks_come_again(void)
{
	struct leap_reject reject = { .bank = 3, .seq = 3, .bitmap = { 2, 0 } };
	struct leap_send send = frame_send(3, 3, 4000);
	uint32_t bank;

	open_pair("127.0.0.1", 0);
	deliver(3, 4000);
	check(ioctl(receiver.fd, LEAP_IOC_REJECT, &reject) == 0);
	check(bank_meta(&receiver, 3)->state == LEAP_BANK_FILLING);
	check(bank_meta(&receiver, 3)->bitmap[0] == 5);
	send.bitmap[0] = 2;
	send.bitmap[1] = 0;
	check(port_send(&sender, send).sent == 1);
	check(port_wait(&receiver, 1000000, &bank) == 0 && bank == 3);
	reject.bitmap[0] = ~0ULL;
	check(ioctl(receiver.fd, LEAP_IOC_REJECT, &reject) == 0);
	check(bank_meta(&receiver, 3)->state == LEAP_BANK_FREE);
	deliver(3, 10000);
	reject.seq = 4;
	refused(ioctl(receiver.fd, LEAP_IOC_REJECT, &reject), ESTALE);
	close_pair();
}

static void a_slot_is_busy_until_the_network_has_read_it(void)
{
	struct leap_send send;
	uint64_t busy;
	uint32_t bank;

	open_pair("127.0.0.1", 0);
	check(netem("lo", 200, 0, 0, 0) == 0);
	fill_frame(slot_bytes(&sender, 0), 16384, 0);
	send = port_send(&sender, frame_send(0, 0, 16384));
	check(send.watch_is_busy == 1);
	check(ioctl(sender.fd, LEAP_IOC_TX_BUSY, &busy) == 0 && busy == 1);
	refused(port_wait(&receiver, 50000, &bank), ETIME);
	check(port_wait(&receiver, 1000000, &bank) == 0);
	check(is_frame(bank_bytes(&receiver, bank), 16384, 0));
	sleep_ms(20);
	check(ioctl(sender.fd, LEAP_IOC_TX_BUSY, &busy) == 0 && busy == 0);
	/* Packets may outlive the file they came from. */
	port_send(&sender, frame_send(0, 1, 16384));
	port_close(&sender);
	check(port_wait(&receiver, 1000000, &bank) == 0);
	check(is_frame(bank_bytes(&receiver, bank), 16384, 0));
	check(netem("lo", 0, 0, 0, 0) == 0);
	port_close(&receiver);
}

static void on_alarm(int number)
{
	(void)number;
}

static void waiting_ends(void)
{
	struct sigaction action = { .sa_handler = on_alarm };
	struct itimerval timer = { .it_value.tv_usec = 50000 };
	struct leap_wait wait = { .timeout_us = 30000000, .busy_us = 100 };
	uint64_t start = now_us();
	struct port port = port_at("127.0.0.1", HERE);
	uint32_t bank;

	refused(port_wait(&port, 20000, &bank), ETIME);
	check(now_us() - start >= 20000);
	check(sigaction(SIGALRM, &action, NULL) == 0);
	check(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	refused(ioctl(port.fd, LEAP_IOC_WAIT_DATA, &wait), EINTR);
	check(now_us() - start < 10000000);
	port_close(&port);
}

static void a_new_session_forgets_the_old(void)
{
	uint32_t bank;

	open_pair("127.0.0.1", 0);
	deliver(0, 5000);
	port_send(&sender, frame_send(1, 1, 5000));
	check(port_from(&receiver, "127.0.0.1", PEER, SESSION + 1, 1000) == 0);
	refused(port_wait(&receiver, 0, &bank), ETIME);
	port_send(&sender, frame_send(1, 1000, 5000));
	check(port_stats(&receiver).rx_frames == 2);
	port_to(&sender, "127.0.0.1", HERE, SESSION + 1);
	deliver(1000, 5000);
	close_pair();
}

static int move_to(const char *address, uint64_t session)
{
	struct leap_peer peer = { .from = endpoint(address, PEER), .session = session };

	return ioctl(receiver.fd, LEAP_IOC_MOVE_PEER, &peer);
}

static void a_peer_that_moves_keeps_its_frames(void)
{
	struct leap_send send = frame_send(1, 1, 5000);
	uint32_t bank;

	open_pair("127.0.0.1", 0);
	bank = deliver(0, 5000);
	fill_frame(slot_bytes(&sender, 1), 5000, 1);
	send.bitmap[0] = 5;
	port_send(&sender, send);
	check(move_to("127.0.0.2", SESSION) == 0);
	send.bitmap[0] = ~5ULL;
	port_send(&sender, send);
	check(bank_meta(&receiver, 1)->bitmap[0] == 5);
	check(bank_meta(&receiver, bank)->state == LEAP_BANK_HELD);
	refused(move_to("127.0.0.1", SESSION + 1), ENOTCONN);
	check(move_to("127.0.0.1", SESSION) == 0);
	port_send(&sender, send);
	check(port_wait(&receiver, 0, &bank) == 0 && bank == 1);
	check(is_frame(bank_bytes(&receiver, bank), 5000, 1));
	close_pair();
}

/* Brings the last chunk of a frame of so many bytes to the receiver itself. */
static int take_last(uint32_t seq, uint32_t bytes, uint64_t session, uint32_t cut)
{
	struct leap_send send = frame_send(0, seq, bytes);
	uint32_t chunk = send.n_chunks - 1, left = bytes - chunk * LEAP_SLOT_BYTES;
	static struct {
		struct leap_datagram header;
		uint8_t payload[LEAP_SLOT_BYTES];
	} datagram;
	struct leap_came came = {
		.address = (uintptr_t)&datagram, .bytes = sizeof(datagram.header) + left - cut,
	};

	datagram.header = (struct leap_datagram){
		.magic = cpu_to_le32(LEAP_MAGIC), .version = LEAP_WIRE_VERSION,
		.kind = LEAP_KIND_DATA, .chunk = cpu_to_le16(chunk),
		.session = cpu_to_le64(session), .seq = cpu_to_le32(seq),
		.n_chunks = cpu_to_le16(send.n_chunks), .payload_bytes = cpu_to_le16(left),
		.frame_bytes = cpu_to_le32(bytes), .crc = cpu_to_le32(0x1234),
	};
	memcpy(datagram.payload, slot_bytes(&sender, seq % LEAP_BANKS) + chunk * LEAP_SLOT_BYTES,
	       left);
	return ioctl(receiver.fd, LEAP_IOC_TAKE, &came);
}

static void what_came_another_way_is_taken(void)
{
	struct leap_came bad = { .address = 8, .bytes = 100 };
	struct leap_send send = frame_send(0, 0, 5000);
	uint32_t bank;

	open_pair("127.0.0.1", 0);
	fill_frame(slot_bytes(&sender, 0), 5000, 0);
	send.bitmap[0] = 7;
	port_send(&sender, send);
	refused(take_last(0, 5000, SESSION + 1, 0), ENOTCONN);
	check(take_last(0, 5000, SESSION, 1) == 0);
	check(port_stats(&receiver).rx_malformed == 1);
	refused(port_wait(&receiver, 0, &bank), ETIME);
	check(take_last(0, 5000, SESSION, 0) == 0);
	check(port_wait(&receiver, 0, &bank) == 0 && bank == 0);
	check(is_frame(bank_bytes(&receiver, bank), 5000, 0));
	check(bank_meta(&receiver, bank)->crc[3] == 0x1234);
	check(take_last(0, 5000, SESSION, 0) == 0);
	check(port_stats(&receiver).rx_duplicate == 1);
	refused(ioctl(receiver.fd, LEAP_IOC_TAKE, &bad), EFAULT);
	bad.bytes = 31;
	refused(ioctl(receiver.fd, LEAP_IOC_TAKE, &bad), EINVAL);
	bad.bytes = 1433;
	refused(ioctl(receiver.fd, LEAP_IOC_TAKE, &bad), EINVAL);
	close_pair();
}

static void set_mtu(const char *device, int mtu)
{
	struct ifreq request = { .ifr_mtu = mtu };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	check(fd >= 0);
	strncpy(request.ifr_name, device, sizeof(request.ifr_name) - 1);
	check(ioctl(fd, SIOCSIFMTU, &request) == 0);
	check(close(fd) == 0);
}

static void a_way_that_narrows_is_told(void)
{
	struct leap_send send = frame_send(1, 1, 3000);
	uint32_t bank;

	open_pair("127.0.0.1", 0);
	bank_release(&receiver, deliver(0, 3000));
	set_mtu("lo", 1280);
	fill_frame(slot_bytes(&sender, 1), 3000, 1);
	refused(ioctl(sender.fd, LEAP_IOC_SEND, &send), EMSGSIZE);
	/* The last chunk is short. */
	send.bitmap[0] = 4;
	check(port_send(&sender, send).sent == 1);
	set_mtu("lo", 65536);
	send.bitmap[0] = 3;
	check(port_send(&sender, send).sent == 2);
	check(port_wait(&receiver, 1000000, &bank) == 0 && bank == 1);
	check(is_frame(bank_bytes(&receiver, bank), 3000, 1));
	close_pair();
}

int selftest(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {
#define TEST(name) { #name, name }
		TEST(an_unknown_version_is_refused),
		TEST(a_mapping_is_whole_and_shared),
		TEST(a_mapping_outlives_close),
		TEST(configuring_needs_the_capability),
		TEST(a_port_has_one_opener_in_a_namespace),
		TEST(only_so_many_open_it),
		TEST(bad_arguments_are_refused),
		TEST(frames_arrive_over_ipv4),
		TEST(frames_arrive_over_ipv6),
		TEST(one_frame_is_one_wake_up),
		TEST(a_held_bank_is_not_written),
		TEST(the_oldest_frame_comes_first),
		TEST(rejected_chunks_come_again),
		TEST(only_our_datagrams_are_taken),
		TEST(damaged_packets_are_counted_and_never_written),
		TEST(fragments_go_on),
		TEST(a_packet_of_several_datagrams_is_taken_apart),
		TEST(what_is_not_ours_in_a_packet_reaches_the_socket),
		TEST(a_slot_is_busy_until_the_network_has_read_it),
		TEST(waiting_ends),
		TEST(a_new_session_forgets_the_old),
		TEST(ipv6_is_offered_where_the_kernel_has_it),
		TEST(a_way_that_is_not_there_is_refused),
		TEST(a_device_may_go_down_under_a_sender),
		TEST(a_namespace_stays_for_those_who_opened_there),
		TEST(a_namespace_ends_with_packets_on_their_way),
		TEST(a_peer_that_moves_keeps_its_frames),
		TEST(what_came_another_way_is_taken),
		TEST(a_way_that_narrows_is_told),
	};
	size_t i, n = sizeof(tests) / sizeof(tests[0]);

	for (i = 0; i < n; i++) {
		printf("test %s ... ", tests[i].name);
		fflush(stdout);
		tests[i].run();
		printf("ok\n");
	}
	printf("test result: ok. %zu passed; 0 failed;\n", n);
	return 0;
}
