// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of the module that one board can do over its loopback, as root.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
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
#include "board.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define SESSION 0xabcdef0123456789ULL
#define HERE 7001
#define PEER 7002

#define refused(expression, code) check((expression) < 0 && errno == (code))

/* Two openers on the loopback, one sending to the other. */
static struct port sender, receiver;

static void open_pair(const char *address, uint32_t first_seq)
{
	sender = port_at(address, PEER);
	receiver = port_at(address, HERE);
	check(port_from(&receiver, address, PEER, SESSION, first_seq) == 0);
	port_to(&sender, address, HERE, SESSION);
}

static void close_pair(void)
{
	port_close(&sender);
	port_close(&receiver);
}

/* Sends a frame from a slot and checks what arrives; the bank stays held. */
static uint32_t deliver(uint32_t seq, uint32_t bytes)
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
	struct leap_peer peer = { .from = endpoint("::1", PEER), .session = SESSION };
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
	frames_of_all_sizes_arrive("::1");
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

static int udp_socket(const char *address, uint16_t number)
{
	struct sockaddr_in local = { .sin_family = AF_INET, .sin_port = htons(number) };
	struct timeval timeout = { .tv_usec = 200000 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	inet_pton(AF_INET, address, &local.sin_addr);
	check(fd >= 0 && bind(fd, (void *)&local, sizeof(local)) == 0);
	check(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0);
	return fd;
}

static struct leap_datagram data_header(uint32_t seq, uint32_t n_chunks, uint32_t chunk,
					uint32_t bytes)
{
	struct leap_datagram header = {
		.magic = cpu_to_le32(LEAP_MAGIC), .version = LEAP_WIRE_VERSION,
		.session = cpu_to_le64(SESSION), .seq = cpu_to_le32(seq),
		.n_chunks = cpu_to_le16(n_chunks), .chunk = cpu_to_le16(chunk),
		.payload_bytes = cpu_to_le16(bytes),
		.frame_bytes = cpu_to_le32((n_chunks - 1) * LEAP_SLOT_BYTES + bytes),
	};

	return header;
}

struct hostile {
	int raw, udp;
	uint8_t payload[LEAP_HEADER_BYTES + 4096];
	uint8_t packet[8192];
};

static size_t hostile_packet(struct hostile *h, const char *from, uint16_t from_port,
			     const struct leap_datagram *header, size_t bytes)
{
	memcpy(h->payload, header, sizeof(*header));
	return udp_packet(h->packet, from, from_port, "127.0.0.1", HERE, h->payload,
			  sizeof(*header) + bytes);
}

/* Sends a datagram; returns whether the socket on our port got it. */
static bool passes(struct hostile *h, const char *from, uint16_t from_port,
		   const struct leap_datagram *header, size_t bytes)
{
	uint8_t answer[8192];

	raw_send(h->raw, "127.0.0.1", h->packet, hostile_packet(h, from, from_port, header, bytes));
	return recv(h->udp, answer, sizeof(answer), 0) == (ssize_t)(sizeof(*header) + bytes);
}

static void only_our_datagrams_are_taken(void)
{
	static struct hostile h;
	struct leap_datagram header = data_header(0, 2, 0, 1400), other;

	h.raw = raw_socket();
	h.udp = udp_socket("127.0.0.1", HERE);
	open_pair("127.0.0.1", 0);
	check(!passes(&h, "127.0.0.1", PEER, &header, 1400));
	check(passes(&h, "127.0.0.2", PEER, &header, 1400));
	check(passes(&h, "127.0.0.1", PEER + 1, &header, 1400));
	other = header, other.session++;
	check(passes(&h, "127.0.0.1", PEER, &other, 1400));
	other = header, other.kind = 1;
	check(passes(&h, "127.0.0.1", PEER, &other, 1400));
	other = header, other.version = 2;
	check(passes(&h, "127.0.0.1", PEER, &other, 1400));
	other = header, other.magic = 0;
	check(passes(&h, "127.0.0.1", PEER, &other, 1400));
	check(port_stats(&receiver).rx_datagrams == 1);
	/* With nobody to receive from, the module takes nothing. */
	check(port_from(&receiver, "127.0.0.1", PEER, 0, 0) == 0);
	check(passes(&h, "127.0.0.1", PEER, &header, 1400));
	close(h.raw);
	close(h.udp);
	close_pair();
}

/* Writes to the raw packet, sends it, returns whether the counter moved by one. */
static void send_changed(struct hostile *h, size_t n, size_t at, uint8_t xor)
{
	h->packet[at] ^= xor;
	raw_send(h->raw, "127.0.0.1", h->packet, n);
}

static void damaged_packets_are_counted_and_never_written(void)
{
	static struct hostile h;
	struct leap_datagram header = data_header(0, 2, 0, 1400), bad;
	struct leap_stats stats;
	size_t n, i;

	h.raw = raw_socket();
	open_pair("127.0.0.1", 0);
	memset(receiver.map + LEAP_META_BYTES, 0x5a, LEAP_FRAME_MAX);
	n = hostile_packet(&h, "127.0.0.1", PEER, &header, 1400);
	send_changed(&h, n, 24, 0x80);			/* UDP length, too long */
	n = hostile_packet(&h, "127.0.0.1", PEER, &header, 1400);
	send_changed(&h, n, 25, 0x08);			/* and too short */
	stats = port_stats(&receiver);
	check(stats.rx_bad_length == 2);
	n = hostile_packet(&h, "127.0.0.1", PEER, &header, 1400);
	send_changed(&h, n, 26, 0x55);			/* checksum */
	n = hostile_packet(&h, "127.0.0.1", PEER, &header, 1400);
	send_changed(&h, n, n - 1, 0x01);		/* payload */
	stats = port_stats(&receiver);
	check(stats.rx_bad_checksum == 2);
#define MALFORMED(field, value, bytes)					     \
	do {								     \
		bad = header;						     \
		bad.field = (value);					     \
		n = hostile_packet(&h, "127.0.0.1", PEER, &bad, (bytes));    \
		raw_send(h.raw, "127.0.0.1", h.packet, n);		     \
	} while (0)
	MALFORMED(chunk, cpu_to_le16(2), 1400);
	MALFORMED(chunk, cpu_to_le16(0xffff), 1400);
	MALFORMED(n_chunks, cpu_to_le16(LEAP_MAX_CHUNKS + 1), 1400);
	MALFORMED(n_chunks, 0, 1400);
	MALFORMED(payload_bytes, cpu_to_le16(1401), 1401);
	MALFORMED(payload_bytes, cpu_to_le16(4000), 4000);
	MALFORMED(payload_bytes, cpu_to_le16(1400), 1399);
	MALFORMED(frame_bytes, cpu_to_le32(0xffffffff), 1400);
	MALFORMED(frame_bytes, 0, 1400);
#undef MALFORMED
	stats = port_stats(&receiver);
	check(stats.rx_malformed == 9);
	check(stats.rx_datagrams == 0 && bank_meta(&receiver, 0)->state == LEAP_BANK_FREE);
	for (i = 0; i < LEAP_FRAME_MAX; i++)
		check(receiver.map[LEAP_META_BYTES + i] == 0x5a);
	/* The frame itself still comes, and nothing beside its chunks is written. */
	deliver(0, 2000);
	for (i = 2000; i < LEAP_FRAME_MAX; i++)
		check(receiver.map[LEAP_META_BYTES + i] == 0x5a);
	close(h.raw);
	close_pair();
}

static void fragments_go_on(void)
{
	static struct hostile h;
	struct leap_datagram header = data_header(0, 1, 0, 1200);
	uint8_t answer[4096];
	struct iphdr *ip = (void *)h.packet;
	size_t n;

	h.raw = raw_socket();
	h.udp = udp_socket("127.0.0.1", HERE);
	open_pair("127.0.0.1", 0);
	n = hostile_packet(&h, "127.0.0.1", PEER, &header, 1200);
	ip->id = htons(77);
	ip->frag_off = htons(0x2000);
	raw_send(h.raw, "127.0.0.1", h.packet, 20 + 808);
	memmove(h.packet + 20, h.packet + 20 + 808, n - 828);
	ip->frag_off = htons(808 / 8);
	raw_send(h.raw, "127.0.0.1", h.packet, n - 808);
	check(recv(h.udp, answer, sizeof(answer), 0) == 1232);
	check(port_stats(&receiver).rx_datagrams == 0);
	close(h.raw);
	close(h.udp);
	close_pair();
}

static void a_packet_of_several_datagrams_is_taken_apart(void)
{
	uint8_t packet[5 * (LEAP_HEADER_BYTES + LEAP_SLOT_BYTES)], *at = packet;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(HERE) };
	uint8_t frame[4 * LEAP_SLOT_BYTES + 10];
	int segment = LEAP_HEADER_BYTES + LEAP_SLOT_BYTES, i;
	int fd = udp_socket("127.0.0.1", PEER);
	uint32_t bank;

	open_pair("127.0.0.1", 0);
	fill_frame(frame, sizeof(frame), 0);
	for (i = 0; i < 5; i++) {
		uint32_t bytes = i < 4 ? LEAP_SLOT_BYTES : 10;
		struct leap_datagram header = data_header(0, 5, i, bytes);

		header.frame_bytes = cpu_to_le32(sizeof(frame));
		memcpy(at, &header, sizeof(header));
		memcpy(at + sizeof(header), frame + i * LEAP_SLOT_BYTES, bytes);
		at += sizeof(header) + bytes;
	}
	check(setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)) == 0);
	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	check(sendto(fd, packet, at - packet, 0, (void *)&to, sizeof(to)) == at - packet);
	check(port_wait(&receiver, 1000000, &bank) == 0 && bank == 0);
	check(is_frame(bank_bytes(&receiver, 0), sizeof(frame), 0));
	/* Older kernels take it apart before the loopback. */
	check(port_stats(&receiver).rx_gso <= 1 && port_stats(&receiver).rx_datagrams == 5);
	/* Segments too short for a header are not. */
	segment = 16;
	check(setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)) == 0);
	check(sendto(fd, packet, 512, 0, (void *)&to, sizeof(to)) == 512);
	check(port_stats(&receiver).rx_datagrams == 5);
	close(fd);
	close_pair();
}

/* Puts a datagram behind others in a packet. */
static uint8_t *append(uint8_t *at, const struct leap_datagram *header, const uint8_t *payload,
		       uint32_t bytes)
{
	memcpy(at, header, sizeof(*header));
	memcpy(at + sizeof(*header), payload, bytes);
	return at + sizeof(*header) + bytes;
}

/* What a neighbour says in quick succession may come as one packet. */
static void what_is_not_ours_in_a_packet_reaches_the_socket(void)
{
	const int segment = LEAP_HEADER_BYTES + LEAP_SLOT_BYTES;
	struct leap_datagram header = data_header(0, 1, 0, LEAP_SLOT_BYTES), ping = header;
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(HERE) };
	uint8_t packet[3 * segment], answer[sizeof(packet)], frame[LEAP_SLOT_BYTES], *at;
	int from = udp_socket("127.0.0.1", PEER), socket = udp_socket("127.0.0.1", HERE);
	uint32_t order, bank;
	ssize_t n;

	ping.kind = 2;
	fill_frame(frame, sizeof(frame), 0);
	inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
	check(setsockopt(from, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)) == 0);
	open_pair("127.0.0.1", 0);
	for (order = 0; order < 2; order++) {
		header.seq = cpu_to_le32(order);
		at = packet;
		/* Ours before another that is shorter, or after one. */
		if (order)
			at = append(at, &ping, frame, LEAP_SLOT_BYTES);
		at = append(at, &header, frame, LEAP_SLOT_BYTES);
		if (!order)
			at = append(at, &ping, frame, 16);
		check(sendto(from, packet, at - packet, 0, (void *)&to, sizeof(to)) == at - packet);
		check(port_wait(&receiver, 1000000, &bank) == 0 && bank == order);
		check(is_frame(bank_bytes(&receiver, bank), sizeof(frame), 0));
		do {
			n = recv(socket, answer, sizeof(answer), 0);
			check(n > 0);
		} while (((struct leap_datagram *)answer)->kind != ping.kind);
	}
	check(port_stats(&receiver).rx_malformed == 0 && port_stats(&receiver).rx_datagrams == 2);
	close(from);
	close(socket);
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
