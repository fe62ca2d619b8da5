# Each target is a command that one could type. `make help` lists them.

CARGO ?= cargo
COULTER = $(CARGO) run --quiet --release --package coulter-cli --
LABORATORY = $(CARGO) run --quiet --release --package coulter-lab --
# Where `make install` puts things; DESTDIR stands before all of it, for packages.
PREFIX ?= /usr/local
DESTDIR ?=
# mount(8) looks for its helpers nowhere else.
SBINDIR ?= /usr/sbin
# A seed of this run alone, for what tries others each time. Make prints the command with it.
ANY_SEED = $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
# Where `make man` and `make completions` put what they make.
GENERATED = target/generated

.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the programs, optimised: target/release/coulter
	scripts/setup.sh build
	$(CARGO) build --release --package coulter-cli

laboratory: ## the laboratory, optimised: target/release/coulter-lab
	scripts/setup.sh build
	$(CARGO) build --release --package coulter-lab

install: ## the program, pages, completions, units, udev rule, mount helper: PREFIX=/usr/local DESTDIR=
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" SBINDIR="$(SBINDIR)" scripts/install.sh install

uninstall: ## takes away what `make install` has put there
	PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" SBINDIR="$(SBINDIR)" scripts/install.sh uninstall

package: ## a Debian package, in target/package
	scripts/setup.sh build
	scripts/package.sh

package-test: ## the package installed in a virtual machine: fstab, reboots, upgrade while mounted, purge
	scripts/setup.sh package
	scripts/package.sh
	scripts/package-test.sh

static: ## one program that needs no library: target/x86_64-unknown-linux-musl/release-lto/coulter
	scripts/setup.sh static
	scripts/static.sh

# Not a part of `make test`, which builds nothing else optimised: a build for this alone would take a third of
# its time. `make package` checks the size too, of the program that it packs.
size: ## the program without debug information is under 9 MB
	$(CARGO) build --profile release-lto --package coulter-cli
	scripts/size.sh

demo: ## see it work: random writes against a plain file, a crash, a picture, a lost host
	@test -x target/release/coulter-lab || \
	  echo "demo: compiles the programs first, which takes some minutes; then measures for two" >&2
	scripts/setup.sh demo
	$(CARGO) build --release --package coulter-lab
	$(LABORATORY) demo $(ARGUMENTS)
	$(LABORATORY) demo --replicate

test: ## everything: rule book, format, lints, documentation, packages, bare-metal builds, tests, examples, virtual machines
	scripts/setup.sh vm
	scripts/test.sh

lint: ## rule book, format, lints and documentation only
	scripts/setup.sh build
	scripts/test.sh tidy format lint docs

publish-check: ## `cargo publish` of each library crate up to the upload, built from its package
	scripts/setup.sh build
	scripts/test.sh publish

examples: ## the example of each library crate
	scripts/setup.sh build
	scripts/test.sh examples

bench: ## the figures of docs/benchmarking.md
	scripts/setup.sh build
	$(LABORATORY) bench volume $(ARGUMENTS)
	$(LABORATORY) bench engine $(ARGUMENTS)
	$(LABORATORY) bench recovery $(ARGUMENTS)

filesystems: ## ext4, XFS and Btrfs on a volume: fio, trim, fsck, the daemon killed under load
	scripts/setup.sh test
	$(CARGO) test --quiet --release --package coulter-cli --test file_systems -- \
	  --ignored --nocapture

suites: ## other people's: fsx and stress-ng on the block device and on ext4, XFS and Btrfs
	scripts/setup.sh suites
	$(CARGO) install --quiet --locked --root target/tools fsx@0.3.2
	FSX=$(CURDIR)/target/tools/bin/fsx $(CARGO) test --quiet --release --package coulter-cli \
	  --test suites -- --ignored --nocapture

file-suites: ## pjdfstest, fsx, stress-ng, databases, git, rsync and dpkg on `coulter fs` and `coulter overlay`: half an hour
	scripts/setup.sh suites
	$(CARGO) install --quiet --locked --root target/tools fsx@0.3.2
	$(CARGO) install --quiet --locked --root target/tools pjdfstest@0.2.2
	FSX=$(CURDIR)/target/tools/bin/fsx PJDFSTEST=$(CURDIR)/target/tools/bin/pjdfstest $(CARGO) test --quiet --release \
	  --package coulter-cli --test file_suites -- --ignored --nocapture --test-threads 1

flash-stacks: ## fio, PostMark, PostgreSQL and more on an emulated drive and on a volume on it
	scripts/setup.sh bench
	$(CARGO) test --quiet --release --package coulter-lab --test flash_stacks -- \
	  --ignored --nocapture

slfs-paper: ## the S-LFS paper's evaluation, on mounts and on models: half an hour, 8 GiB of memory
	scripts/setup.sh bench
	scripts/setup.sh f2fs
	COULTER_OUTCOME=$(CURDIR)/target/slfs-paper.json $(CARGO) test --quiet --release --package coulter-lab --test slfs -- \
	  --ignored --nocapture
	$(LABORATORY) report --only D16,D17,D18 --measured target/slfs-paper.json --output target/slfs-paper.html

slfs-padding: ## what padding costs and spares S-LFS, on an emulated drive
	$(CARGO) test --quiet --package coulter-flash --test padding -- --ignored --nocapture

nbd-interop: ## libnbd, QEMU and fio against the NBD server, and its speed against qemu-nbd
	scripts/setup.sh test
	$(CARGO) test --quiet --release --package coulter-cli --test nbd -- --ignored --nocapture

fsync-ratio: build ## fsync-heavy writes on a default store in a file beside a plain loop device, in turns
	scripts/fsync_ratio.sh $(ARGUMENTS)

scrub-latency: build ## what a scrub costs those who use the volume meanwhile, in turns
	scripts/setup.sh bench
	scripts/scrub_latency.sh $(ARGUMENTS)

file-ratios: build ## files on ext4, `coulter fs`, `coulter overlay` and a bare FUSE file system, in turns
	scripts/setup.sh bench
	scripts/file_ratios.sh $(ARGUMENTS)

overlay-paper: build laboratory ## the sVFS paper on real mounts: with `coulter overlay` and without, in turns; then into the report
	scripts/setup.sh bench
	scripts/overlay_paper.py --figures --json target/overlay-paper.json $(ARGUMENTS)
	$(LABORATORY) report --measured target/overlay-paper.json

overlay-f2fs: build laboratory ## the sVFS paper's micro row on F2FS, in user-mode Linux
	scripts/setup.sh f2fs
	scripts/overlay_f2fs.sh $(ARGUMENTS)

programs: ## databases, mail and files on a volume and beside it, on this disk and held back as a cloud volume is
	scripts/setup.sh bench
	$(CARGO) run --quiet --release --package coulter-systems --bin programs -- $(ARGUMENTS)
	$(CARGO) run --quiet --release --package coulter-systems --bin programs -- --held-back $(ARGUMENTS)

million-files: build ## a million files on `coulter fs` and `coulter overlay`: time, and memory of the daemons
	scripts/million_files.sh $(ARGUMENTS)

mount-mapped: build ## how long a mount takes after a kill, with a million files and 100 GiB mapped
	scripts/mount_mapped.sh $(ARGUMENTS)

power-cut: ## 200 power cuts and more under ext4, XFS, Btrfs, SQLite, PostgreSQL, `coulter fs`, `coulter overlay`
	scripts/setup.sh test
	$(CARGO) build --release --package coulter-cli
	$(CARGO) run --quiet --release --package coulter-systems --bin power-cut -- $(ARGUMENTS)

vm: ## real kernels in virtual machines: LONG=1, KERNELS=6.1,6.12,newest, SCENARIOS=words, PLACEMENT=1 (FDP)
	scripts/setup.sh vm
	scripts/vm.sh $(if $(LONG),--long) $(if $(PLACEMENT),--placement) $(if $(KERNELS),--kernels $(KERNELS)) \
	  $(if $(SCENARIOS),--scenarios "$(SCENARIOS)") $(ARGUMENTS)

f2fs: ## F2FS on a volume, in user-mode Linux: verified, checked, and its power cut: CUTS=3
	scripts/setup.sh f2fs
	$(CARGO) build --release --package coulter-cli --package coulter-lab
	scripts/f2fs.sh $(or $(CUTS),3)

guest: ## a virtual machine that boots from a volume over NBD, is killed, and comes back
	scripts/setup.sh vm
	$(CARGO) build --release --package coulter-cli --package coulter-systems --bins
	scripts/guest.sh

nvme-kills: ## the NVMe target killed and hung up on under load: KILLS=200
	scripts/setup.sh build
	COULTER_NVME_KILLS=$(or $(KILLS),200) $(CARGO) test --quiet --release --package coulter-cli \
	  --test nvme_kills -- --ignored --nocapture

nvme-cost: ## CPU time and latency of a request over NVMe/TCP, beside NBD, in turns, as JSON
	scripts/setup.sh build
	$(CARGO) run --quiet --release --package coulter-attach-suite --example target_cost -- $(ARGUMENTS)

pages-once: ## PostgreSQL without full-page writes, MariaDB without double-write buffer, over power cuts: CUTS=10 on each of ext4 and XFS
	scripts/setup.sh bench
	$(CARGO) build --release --package coulter-cli
	$(CARGO) run --quiet --release --package coulter-systems --bin power-cut -- \
	  --workloads postgresql-pages-once,mariadb-pages-once --file-systems ext4,xfs --cuts $(or $(CUTS),10)

instructions: ## what a 4 KiB write costs from each attach point's queue to the ring: POINTS=…
	scripts/setup.sh instructions
	scripts/instructions.sh $(ARGUMENTS) $(POINTS)

report: ## the published experiments run again: coulter-report.html
	scripts/setup.sh build
	$(LABORATORY) report $(ARGUMENTS)

lives: ## the engine under simulated power cuts and faults, other seeds each time: LIVES=3000 FIRST=seed
	scripts/setup.sh build
	$(LABORATORY) sim --seeds $(or $(LIVES),3000) --first $(or $(FIRST),$(ANY_SEED))

hosts: ## two and three simulated hosts on one simulated bucket, other seeds each time: WORLDS=5000 FIRST=seed
	scripts/setup.sh build
	$(CARGO) run --quiet --release --package coulter-hosts -- $(or $(WORLDS),5000) $(or $(FIRST),$(ANY_SEED))

copies-kills: ## hosts that ship with --ack remote, killed or frozen, and others that take over: KILLS=200
	scripts/setup.sh build
	COULTER_KILLS=$(or $(KILLS),200) $(CARGO) test --quiet --package coulter-object --all-features \
	  --test kills -- --nocapture

copies-attach: ## a copy of 1 TiB is attached on a host that has nothing of it: GETs, seconds to the first block
	scripts/setup.sh build
	$(CARGO) test --quiet --package coulter-object --all-features --test cold_attach -- \
	  --ignored --nocapture

copies-rival: ## random writes with fsync on a volume with --ack remote and on s3backer, one bucket of versitygw
	scripts/setup.sh build
	scripts/object_servers.sh
	VERSITYGW=target/tools/bin/versitygw $(LABORATORY) bench replicate --rival $(ARGUMENTS)

object-servers: ## services of S3 by others, on this machine: versitygw carries a volume, moto is refused
	scripts/setup.sh build
	scripts/object_servers.sh
	$(CARGO) test --quiet --package coulter-object --all-features --test servers -- \
	  --ignored --nocapture

soak: ## a daemon's memory under endless writes: SECONDS=300
	scripts/setup.sh demo
	COULTER_SOAK_SECONDS=$(or $(SECONDS),300) $(CARGO) test --quiet --release \
	  --package coulter-cli --test soak -- --ignored --nocapture

operator: ## daemons restarted, killed, tuned at random under hosts; then six operators at once, other acts each time: SECONDS=300 each, SEED=seed
	scripts/setup.sh build
	COULTER_OPERATOR_SECONDS=$(or $(SECONDS),300) COULTER_OPERATOR_SEED=$(or $(SEED),$(ANY_SEED)) \
	  $(CARGO) test --quiet --release --package coulter-cli --test operator \
	  --test crowd -- --ignored --nocapture

damage: ## 12,000 damaged stores, each block of six stores, 10,000 pairs: nothing that comes out is wrong and called good
	scripts/setup.sh build
	$(CARGO) test --quiet --package coulter-sim --test damage_sweep --test block_sweep --test block_mends -- \
	  --ignored --nocapture

fs-crashes: ## each cut of each pair of operations and of a million random ones on a file system of Coulter's own: minutes
	scripts/setup.sh build
	$(CARGO) test --quiet --release --package coulter-files --test crashes --test engine_crashes --test flight -- \
	  --ignored --nocapture

overlay-lives: ## a million operations by chance on the overlay's model, with crashes and failing calls: minutes
	scripts/setup.sh build
	$(CARGO) test --quiet --release --package coulter-overlay --lib lives -- --ignored --nocapture

fs-kills: ## 60 kills of the daemon of a mounted file system of Coulter's own, under load
	scripts/setup.sh test
	$(CARGO) test --quiet --release --package coulter-cli --test fs -- --ignored --nocapture

overlay-kills: ## 100 kills of the daemon of an overlay over ext4, XFS and Btrfs, under load
	scripts/setup.sh test
	$(CARGO) build --release --package coulter-cli
	$(CARGO) run --quiet --release --package coulter-systems --bin power-cut -- \
	  --workloads overlay --kills --cuts 34 $(ARGUMENTS)

overlay-back: ## the tests of the overlay with `--cache back`: the kernel gathers writes
	scripts/setup.sh test
	COULTER_OVERLAY_CACHE=back $(CARGO) test --quiet --package coulter-cli --test overlay

fuzz: ## bytes for every decoder, every protocol and the engine: SECONDS=60 each, TARGETS=…
	scripts/setup.sh build
	scripts/fuzz.sh $(or $(SECONDS),60) $(TARGETS)

man: ## manual pages, in target/generated/man
	$(COULTER) generate man $(GENERATED)/man
	$(LABORATORY) generate man $(GENERATED)/man

completions: ## completions for bash, zsh and fish, in target/generated/completions
	$(COULTER) generate completions $(GENERATED)/completions
	$(LABORATORY) generate completions $(GENERATED)/completions

.PHONY: laboratory examples publish-check file-ratios overlay-f2fs overlay-paper fsync-ratio scrub-latency help build install uninstall package package-test static size demo test lint bench report filesystems suites flash-stacks slfs-paper slfs-padding nbd-interop programs power-cut vm f2fs guest instructions soak operator damage fuzz object-servers copies-kills copies-attach copies-rival lives hosts man completions fs-crashes overlay-lives fs-kills nvme-kills nvme-cost pages-once overlay-kills overlay-back million-files file-suites
