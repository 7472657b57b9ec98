/* Copies frames between two taps, as the program of a VM does between its guest and its tap.
 *
 *   pump NETNS NAME NETNS NAME     makes a tap in each namespace; prints `ready`, and copies until it is killed
 *
 * One read and one write for each frame, super-frames whole, nothing else: the least that a tap costs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { HEADER = 12, LONGEST = HEADER + 65536 + 18, BATCH = 64 };

static int tap(const char *netns, const char *name)
{
	int space = open(netns, O_RDONLY), file;
	struct ifreq wanted = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
	int header = HEADER;

	if (space < 0 || setns(space, CLONE_NEWNET))
		return -1;
	close(space);
	file = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
	strncpy(wanted.ifr_name, name, IFNAMSIZ - 1);
	if (file < 0 || ioctl(file, TUNSETIFF, &wanted) || ioctl(file, TUNSETVNETHDRSZ, &header) ||
	    ioctl(file, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6))
		return -1;
	return file;
}

int main(int argc, char **argv)
{
	static char frame[LONGEST];
	struct pollfd ends[2];

	if (argc != 5) {
		fprintf(stderr, "usage: pump NETNS NAME NETNS NAME\n");
		return 2;
	}
	for (int i = 0; i < 2; i++) {
		ends[i] = (struct pollfd){.fd = tap(argv[1 + 2 * i], argv[2 + 2 * i]), .events = POLLIN};
		if (ends[i].fd < 0) {
			fprintf(stderr, "pump: %s in %s: %s\n", argv[2 + 2 * i], argv[1 + 2 * i], strerror(errno));
			return 1;
		}
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		poll(ends, 2, -1);
		for (int i = 0; i < 2; i++) {
			for (int n = 0; n < BATCH; n++) {
				ssize_t got = read(ends[i].fd, frame, sizeof frame);
				/* What the other end does not take is lost, as in a full ring. */
				if (got <= 0 || write(ends[1 - i].fd, frame, got) < 0)
					break;
			}
		}
	}
}
