// SPDX-License-Identifier: GPL-2.0
/*
 * Runs in the emulated boards: board COMMAND ...
 *
 *   selftest                            all tests that one board can do
 *   fuzz SEED CALLS                     calls of all kinds, by root and by another user
 *   netem DEVICE DELAY LOSS DUPLICATE REORDER   (ms and percent; 0 0 0 0: none)
 *   echo LOCAL PEER N                   sends N frames back as they come
 *   ping LOCAL PEER N BYTES             sends N frames, waits for each; prints microseconds
 *   flood FROM TO N                     sends N hostile datagrams in the name of FROM
 *   attack DEVICE                       repeats with changes what it hears, for ever
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "board.h"

#define PORT 9999
#define SESSION 0x5eed5eed5eed5eedULL

struct port port_open(void)
{
	struct leap_hello hello = { .api_version = LEAP_API_VERSION };
	struct port port;

	port.fd = open("/dev/leap_tensor", O_RDWR | O_CLOEXEC);
	check(port.fd >= 0);
	check(ioctl(port.fd, LEAP_IOC_HELLO, &hello) == 0);
	port.map = mmap(NULL, LEAP_MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, port.fd, 0);
	check(port.map != MAP_FAILED);
	return port;
}

void port_close(struct port *port)
{
	check(munmap(port->map, LEAP_MAP_BYTES) == 0);
	check(close(port->fd) == 0);
}

struct leap_endpoint endpoint(const char *address, uint16_t number)
{
	struct leap_endpoint out = { .port = htons(number) };

	out.family = strchr(address, ':') ? AF_INET6 : AF_INET;
	check(inet_pton(out.family, address, out.addr) == 1);
	return out;
}

struct port port_at(const char *address, uint16_t number)
{
	struct leap_endpoint local = endpoint(address, number);
	struct port port = port_open();

	check(ioctl(port.fd, LEAP_IOC_SET_PORT, &local) == 0);
	return port;
}

int port_from(struct port *port, const char *address, uint16_t number, uint64_t session,
	      uint32_t first_seq)
{
	struct leap_peer peer = {
		.from = endpoint(address, number), .session = session, .first_seq = first_seq,
	};

	return ioctl(port->fd, LEAP_IOC_SET_PEER, &peer);
}

struct leap_dest port_to(struct port *port, const char *address, uint16_t number,
			 uint64_t session)
{
	struct leap_dest dest = { .to = endpoint(address, number), .session = session };

	check(ioctl(port->fd, LEAP_IOC_SET_DEST, &dest) == 0);
	return dest;
}

struct leap_stats port_stats(struct port *port)
{
	struct leap_stats stats;

	check(ioctl(port->fd, LEAP_IOC_STATS, &stats) == 0);
	return stats;
}

struct leap_bank_meta *bank_meta(struct port *port, uint32_t bank)
{
	return (struct leap_bank_meta *)(port->map + bank * LEAP_BANK_BYTES);
}

uint8_t *bank_bytes(struct port *port, uint32_t bank)
{
	return port->map + bank * LEAP_BANK_BYTES + LEAP_META_BYTES;
}

uint8_t *slot_bytes(struct port *port, uint32_t slot)
{
	return bank_bytes(port, LEAP_BANKS + slot);
}

/* All chunks of a frame of so many bytes. */
struct leap_send frame_send(uint32_t slot, uint32_t seq, uint32_t bytes)
{
	struct leap_send send = {
		.slot = slot, .seq = seq, .frame_bytes = bytes, .watch = slot,
		.n_chunks = (bytes + LEAP_SLOT_BYTES - 1) / LEAP_SLOT_BYTES,
		.bitmap = { ~0ULL, ~0ULL },
	};

	return send;
}

struct leap_send port_send(struct port *port, struct leap_send send)
{
	check(ioctl(port->fd, LEAP_IOC_SEND, &send) == 0);
	return send;
}

int port_wait(struct port *port, uint32_t timeout_us, uint32_t *bank)
{
	struct leap_wait wait = { .timeout_us = timeout_us, .busy_us = 50 };
	int err = ioctl(port->fd, LEAP_IOC_WAIT_DATA, &wait);

	*bank = wait.bank;
	return err;
}

void bank_release(struct port *port, uint32_t bank)
{
	__atomic_store_n(&bank_meta(port, bank)->state, LEAP_BANK_FREE, __ATOMIC_RELEASE);
}

static uint8_t pattern(uint32_t i, uint32_t seq)
{
	return (i * 2654435761U + seq * 40503U) >> 13;
}

void fill_frame(uint8_t *bytes, uint32_t n, uint32_t seq)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		bytes[i] = pattern(i, seq);
}

bool is_frame(const uint8_t *bytes, uint32_t n, uint32_t seq)
{
	uint32_t i;

	for (i = 0; i < n; i++) {
		if (bytes[i] != pattern(i, seq))
			return false;
	}
	return true;
}

uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000ULL + now.tv_nsec / 1000;
}

void sleep_ms(unsigned int ms)
{
	usleep(ms * 1000);
}

/* Appends an attribute to a netlink message. */
static void attribute(struct nlmsghdr *header, int type, const void *bytes, size_t n)
{
	struct rtattr *attr = (void *)((uint8_t *)header + NLMSG_ALIGN(header->nlmsg_len));

	attr->rta_type = type;
	attr->rta_len = RTA_LENGTH(n);
	memcpy(RTA_DATA(attr), bytes, n);
	header->nlmsg_len = NLMSG_ALIGN(header->nlmsg_len) + RTA_ALIGN(attr->rta_len);
}

static uint32_t share(uint32_t percent)
{
	return (uint64_t)percent * 0xffffffff / 100;
}

/* Does `tc qdisc replace dev DEVICE root netem ...`; returns 0 or -errno. */
int netem(const char *device, uint32_t delay_ms, uint32_t loss, uint32_t duplicate,
	  uint32_t reorder)
{
	struct {
		struct nlmsghdr header;
		struct tcmsg tc;
		uint8_t attributes[256];
	} message = {
		.header = { .nlmsg_len = NLMSG_LENGTH(sizeof(struct tcmsg)),
			    .nlmsg_type = RTM_NEWQDISC,
			    .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE },
		.tc = { .tcm_parent = TC_H_ROOT, .tcm_ifindex = if_nametoindex(device) },
	};
	struct {
		struct tc_netem_qopt options;
		struct rtattr attr;
		struct tc_netem_reorder reorder;
	} options = {
		/* The clock of packet schedulers ticks every 64 ns. */
		.options = { .latency = delay_ms * 1000000 / 64, .limit = 100000,
			     .loss = share(loss), .duplicate = share(duplicate),
			     .gap = reorder ? 1 : 0 },
		.attr = { .rta_type = TCA_NETEM_REORDER,
			  .rta_len = RTA_LENGTH(sizeof(struct tc_netem_reorder)) },
		.reorder = { .probability = share(100 - reorder) },
	};
	struct { struct nlmsghdr header; struct nlmsgerr error; } answer;
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);

	check(fd >= 0 && message.tc.tcm_ifindex);
	attribute(&message.header, TCA_KIND, "netem", sizeof("netem"));
	attribute(&message.header, TCA_OPTIONS, &options, sizeof(options));
	check(send(fd, &message, message.header.nlmsg_len, 0) > 0);
	check(recv(fd, &answer, sizeof(answer), 0) > 0);
	close(fd);
	return answer.error.error;
}

static uint16_t checksum(uint32_t sum, const void *bytes, size_t n)
{
	const uint8_t *at = bytes;
	size_t i;

	for (i = 0; i < n; i++)
		sum += i % 2 ? at[i] : at[i] << 8;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* An IPv4 packet with a UDP datagram, checksums included. */
size_t udp_packet(uint8_t *packet, const char *from, uint16_t from_port, const char *to,
		  uint16_t to_port, const void *payload, size_t n)
{
	struct iphdr *ip = (void *)packet;
	struct udphdr *udp = (void *)(packet + sizeof(*ip));
	uint32_t sum = IPPROTO_UDP + sizeof(*udp) + n;
	uint16_t check;

	memset(packet, 0, sizeof(*ip) + sizeof(*udp));
	ip->version = 4;
	ip->ihl = 5;
	ip->ttl = 64;
	ip->protocol = IPPROTO_UDP;
	ip->tot_len = htons(sizeof(*ip) + sizeof(*udp) + n);
	inet_pton(AF_INET, from, &ip->saddr);
	inet_pton(AF_INET, to, &ip->daddr);
	udp->source = htons(from_port);
	udp->dest = htons(to_port);
	udp->len = htons(sizeof(*udp) + n);
	memcpy(udp + 1, payload, n);
	sum += (ntohl(ip->saddr) >> 16) + (ntohl(ip->saddr) & 0xffff);
	sum += (ntohl(ip->daddr) >> 16) + (ntohl(ip->daddr) & 0xffff);
	check = checksum(sum, udp, sizeof(*udp) + n);
	udp->check = htons(check ? check : 0xffff);
	return sizeof(*ip) + sizeof(*udp) + n;
}

int raw_socket(void)
{
	int fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);

	check(fd >= 0);
	return fd;
}

void raw_send(int fd, const char *to, const uint8_t *packet, size_t n)
{
	struct sockaddr_in address = { .sin_family = AF_INET };

	inet_pton(AF_INET, to, &address.sin_addr);
	while (sendto(fd, packet, n, 0, (void *)&address, sizeof(address)) < 0)
		check(errno == ENOBUFS || errno == EAGAIN);
}

/* Waits for the frame, asking again for what got lost by sending `again`. */
static void receive(struct port *port, uint32_t seq, struct leap_send *again, uint32_t *bank)
{
	while (port_wait(port, again ? 50000 : 1000000, bank)) {
		check(errno == ETIME);
		if (again)
			port_send(port, *again);
	}
	check(bank_meta(port, *bank)->seq == seq);
}

static int echo(const char *local, const char *peer, uint32_t n)
{
	struct port port = port_at(local, PORT);
	uint32_t seq, bank;

	check(port_from(&port, peer, PORT, SESSION, 0) == 0);
	port_to(&port, peer, PORT, SESSION + 1);
	for (seq = 0; seq < n; seq++) {
		struct leap_send send;
		uint32_t bytes;

		/* A frame that comes again says that the answer got lost. */
		receive(&port, seq, NULL, &bank);
		bytes = bank_meta(&port, bank)->frame_bytes;
		check(is_frame(bank_bytes(&port, bank), bytes, seq));
		memcpy(slot_bytes(&port, seq % LEAP_BANKS), bank_bytes(&port, bank), bytes);
		bank_release(&port, bank);
		send = frame_send(seq % LEAP_BANKS, seq, bytes);
		port_send(&port, send);
		while (bank_meta(&port, (seq + 1) % LEAP_BANKS)->state == LEAP_BANK_FREE) {
			uint64_t old = port_stats(&port).rx_old;

			sleep_ms(2);
			if (port_stats(&port).rx_old != old)
				port_send(&port, send);
			if (seq + 1 == n && now_us() > bank_meta(&port, bank)->ready_ns / 1000 + 1000000)
				break;
		}
	}
	printf("echo: %u frames\n", n);
	port_close(&port);
	return 0;
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static int ping(const char *local, const char *peer, uint32_t n, uint32_t bytes)
{
	struct port port = port_at(local, PORT);
	uint32_t *us = calloc(n, sizeof(*us)), seq, bank;
	struct leap_stats stats;

	check(us);
	check(port_from(&port, peer, PORT, SESSION + 1, 0) == 0);
	port_to(&port, peer, PORT, SESSION);
	for (seq = 0; seq < n; seq++) {
		struct leap_send send = frame_send(seq % LEAP_BANKS, seq, bytes);
		uint64_t start = now_us();

		fill_frame(slot_bytes(&port, seq % LEAP_BANKS), bytes, seq);
		port_send(&port, send);
		receive(&port, seq, &send, &bank);
		check(is_frame(bank_bytes(&port, bank), bytes, seq));
		us[seq] = now_us() - start;
		bank_release(&port, bank);
	}
	qsort(us, n, sizeof(*us), compare);
	stats = port_stats(&port);
	printf("ping: %u frames of %u bytes, p50 %u us, p99 %u us; %llu wake-ups, %llu sent, %llu duplicate, %llu old, %llu conflict, %llu malformed\n",
	       n, bytes, us[n / 2], us[n * 99 / 100], stats.wakeups, stats.tx_datagrams,
	       stats.rx_duplicate, stats.rx_old, stats.rx_conflict, stats.rx_malformed);
	port_close(&port);
	free(us);
	return 0;
}

/*
 * Attacks with addresses, ports and session known. Frames that are far from
 * the present ones, so that only the module can tell; headers and UDP lengths
 * of all kinds.
 */
static int flood(const char *from, const char *to, uint32_t n)
{
	uint8_t payload[LEAP_HEADER_BYTES + 1440], packet[sizeof(payload) + 64];
	int fd = raw_socket();
	uint32_t i;

	for (i = 0; i < n; i++) {
		struct leap_datagram header = {
			.magic = cpu_to_le32(LEAP_MAGIC), .version = LEAP_WIRE_VERSION,
			.session = cpu_to_le64(SESSION + i % 2),
			.seq = cpu_to_le32(0x40000000 + rand()),
			.n_chunks = cpu_to_le16(rand() % 100), .chunk = cpu_to_le16(rand() % 100),
			.payload_bytes = cpu_to_le16(1400), .frame_bytes = cpu_to_le32(rand()),
		};
		size_t bytes = i % 7 ? 1400 : rand() % 1440;

		memset(payload, 0xee, sizeof(payload));
		if (i % 5 == 0) {
			header.n_chunks = cpu_to_le16(92);
			header.chunk = cpu_to_le16(i % 92);
			header.frame_bytes = cpu_to_le32(92 * 1400);
		}
		memcpy(payload, &header, sizeof(header));
		bytes = udp_packet(packet, from, PORT, to, PORT, payload, sizeof(header) + bytes);
		if (i % 11 == 0)
			packet[24 + rand() % 4] ^= 1 + rand() % 255;	/* UDP length, checksum */
		raw_send(fd, to, packet, bytes);
	}
	close(fd);
	printf("flood: %u datagrams\n", n);
	return 0;
}

/* Hears every IPv4 packet on the wire. */
static int listening_socket(const char *device)
{
	struct sockaddr_ll address = {
		.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP),
		.sll_ifindex = if_nametoindex(device),
	};
	struct packet_mreq all = { .mr_ifindex = address.sll_ifindex, .mr_type = PACKET_MR_PROMISC };
	int fd = socket(AF_PACKET, SOCK_DGRAM, htons(ETH_P_IP));

	check(fd >= 0 && bind(fd, (void *)&address, sizeof(address)) == 0);
	check(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof(all)) == 0);
	return fd;
}

/* Makes a datagram that a neighbour would never send. */
static void distort(struct leap_datagram *header, uint8_t *payload, uint32_t way)
{
	switch (way % 8) {
	case 0:
		payload[rand() % 16] ^= 0x10;
		break;
	case 1:
		header->n_chunks = cpu_to_le16(LEAP_MAX_CHUNKS);
		header->frame_bytes = cpu_to_le32(LEAP_FRAME_MAX);
		break;
	case 2:
		header->seq = cpu_to_le32(le32_to_cpu(header->seq) + 1 + rand() % LEAP_BANKS);
		break;
	case 3:
		header->seq = cpu_to_le32(le32_to_cpu(header->seq) - 1 - rand() % LEAP_BANKS);
		break;
	case 4:
		header->chunk = cpu_to_le16(rand() % LEAP_MAX_CHUNKS);
		break;
	case 5:
		header->session++;
		break;
	case 6:
		header->kind = 1 + rand() % 7;
		break;
	case 7:
		break;
	}
	if (way % 16 >= 8)
		header->crc = rand();
}

/*
 * Attacks by a listener to all packets, with addresses, ports, session and
 * numbers of frames known. Packets of its own have another time to live.
 */
static int attack(const char *device)
{
	uint8_t heard[4096], packet[4096];
	int from = listening_socket(device), to = raw_socket();
	const struct iphdr *ip = (void *)heard;
	const struct udphdr *udp = (void *)(heard + sizeof(*ip));
	struct leap_datagram *header = (void *)(udp + 1);
	const size_t front = sizeof(*ip) + sizeof(*udp);
	char source[16], target[16];
	uint32_t way = 0;
	ssize_t n;

	while ((n = recv(from, heard, sizeof(heard), 0)) >= 0) {
		size_t bytes;

		if (n < (ssize_t)(front + sizeof(*header) + 16) || ip->ttl == 77 ||
		    ip->protocol != IPPROTO_UDP || le32_to_cpu(header->magic) != LEAP_MAGIC)
			continue;
		inet_ntop(AF_INET, &ip->saddr, source, sizeof(source));
		inet_ntop(AF_INET, &ip->daddr, target, sizeof(target));
		distort(header, (uint8_t *)(header + 1), way++);
		bytes = udp_packet(packet, source, ntohs(udp->source), target, ntohs(udp->dest),
				   header, n - front);
		((struct iphdr *)packet)->ttl = 77;
		raw_send(to, target, packet, bytes);
	}
	return 1;
}

int main(int argc, char **argv)
{
	const char *command = argc > 1 ? argv[1] : "";

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!strcmp(command, "selftest") && argc == 2)
		return selftest();
	if (!strcmp(command, "fuzz") && argc == 4)
		return fuzz(strtoull(argv[2], NULL, 0), strtoul(argv[3], NULL, 0));
	if (!strcmp(command, "netem") && argc == 7)
		return -netem(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
	if (!strcmp(command, "echo") && argc == 5)
		return echo(argv[2], argv[3], atoi(argv[4]));
	if (!strcmp(command, "ping") && argc == 6)
		return ping(argv[2], argv[3], atoi(argv[4]), atoi(argv[5]));
	if (!strcmp(command, "flood") && argc == 5)
		return flood(argv[2], argv[3], atoi(argv[4]));
	if (!strcmp(command, "attack") && argc == 3)
		return attack(argv[2]);
	fprintf(stderr, "see board.c for usage\n");
	return 2;
}
