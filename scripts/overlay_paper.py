#!/usr/bin/env python3
"""The sVFS paper's evaluation on real mounts: a directory with `coulter overlay` and without, in turns.

Each lower file system lies on a disk: a file of this machine (`this`), the same held back to the limits of a cloud
volume (`cloud`: 3000 operations and 125 MiB a second, by the kernel's throttle), or an emulated drive (`qlc-iu16k`,
`sd-card`, in real time). fio writes 4 KiB at random with 8 threads, buffered in little memory and direct; loads like
varmail, fileserver and PostMark follow. `--figures` adds what DESIGN promises: reads, git, tar, settling, and bindfs as
the ceiling of FUSE. `--json` writes an outcome for `coulter-lab report --measured`. Needs root, fio and 6 GiB.
"""

import argparse, contextlib, json, os, random, shutil, statistics, subprocess, sys, tempfile, threading, time

# Write throughput with sVFS, in percent of that without, as the abstract of the paper says.
PAPER = {"ext4": (127, 125), "f2fs": (136, 122), "xfs": (134, 120), "btrfs": (235, 351)}
MICRO = ["random-buffered", "random-direct"]
MACRO = ["varmail", "fileserver", "postmark"]
CLOUD = {"write_iops": 3000, "read_iops": 3000, "write_bps": 125 << 20, "read_bps": 125 << 20}
BLKIO = "/sys/fs/cgroup/blkio/blkio.throttle"


def run(*words, **options):
    return subprocess.run(words, check=True, text=True, capture_output=True, **options).stdout.strip()


class Place:
    """A lower file system on a disk, with an overlay over its directory `data` or without."""

    def __init__(self, bench, kind, disk, number):
        self.bench, self.kind, self.disk = bench, kind, disk
        self.root = f"{bench.directory}/{kind}-{disk}-{number}"
        self.directory = f"{self.root}/data"
        self.is_covered = False
        os.mkdir(self.root)

    def __enter__(self):
        bench, size = self.bench, self.bench.disk_mib
        if self.disk in ("this", "cloud"):
            self.image = f"{self.root}.img"
            if bench.options.quick:
                run("truncate", "--size", f"{size}M", self.image)
            else:
                # Blocks that were written: the file below must not be allocated in the midst of a turn.
                run("dd", "if=/dev/zero", f"of={self.image}", "bs=1M", f"count={size}", "conv=fsync", "status=none")
            self.device = run("losetup", "--find", "--show", "--direct-io=on", self.image)
        else:
            name = os.path.basename(self.root)
            self.name = name
            self.device = run(bench.laboratory, "--state-directory", bench.state, "flash", "attach", "--profile",
                              self.disk, "--size", f"{size}M", "--pace", "real", "--name", name)
        quiet = ["-F"] if self.kind == "ext4" else ["-f"]
        run(f"mkfs.{self.kind}", "-q", *quiet, self.device)
        run("mount", self.device, self.root)
        os.mkdir(self.directory)
        if self.disk == "cloud":
            self.hold_back(CLOUD)
        return self

    def hold_back(self, limits):
        number = os.stat(self.device).st_rdev
        for name, value in limits.items():
            with open(f"{BLKIO}.{name}_device", "w") as file:
                file.write(f"{os.major(number)}:{os.minor(number)} {value}")

    def cover(self):
        self.is_covered = True
        self.bench.coulter("overlay", self.directory, "--store-size", f"{self.bench.store_mib}M", "--settle", "never")

    def durable(self):
        """Waits until all that was written is durable. The kernel does not pass syncfs on to FUSE."""
        if self.is_covered:
            self.bench.coulter("sync", self.directory)
        else:
            run("sync", "-f", self.directory)

    def __exit__(self, *_):
        with contextlib.suppress(subprocess.CalledProcessError):
            self.bench.coulter("overlay", "detach", self.directory, "--keep")
        with contextlib.suppress(subprocess.CalledProcessError):
            run("fusermount3", "-qu", f"{self.root}/passed")
        if self.disk == "cloud":
            self.hold_back({name: 0 for name in CLOUD})
        run("umount", self.root)
        if self.disk in ("this", "cloud"):
            run("losetup", "-d", self.device)
            os.unlink(self.image)
        else:
            self.bench.coulter("detach", self.name)


class Bench:
    """What all comparisons share."""

    def __init__(self, options):
        self.options = options
        quick = options.quick
        self.file_mib = 16 if quick else options.file_mib
        self.seconds = 0.2 if quick else options.seconds
        self.disk_mib = max(self.file_mib * 3 + 512, 700)
        self.store_mib = max(self.file_mib + 128, 256)
        self.memory_mib = max(self.file_mib // 4, 24)
        self.directory = tempfile.mkdtemp(prefix="overlay-paper.", dir=options.directory)
        self.state = f"{self.directory}/state"
        os.mkdir(self.state)
        self.program, self.laboratory = options.coulter, options.laboratory
        self.cgroup = self.make_cgroup()

    def coulter(self, *words):
        return run(self.program, "--state-directory", self.state, *words)

    def make_cgroup(self):
        path = f"/sys/fs/cgroup/memory/overlay-paper-{os.getpid()}"
        try:
            os.mkdir(path)
            with open(f"{path}/memory.limit_in_bytes", "w") as file:
                file.write(str(self.memory_mib << 20))
            return path
        except OSError:
            return None

    def close(self):
        if self.cgroup:
            with contextlib.suppress(OSError):
                os.rmdir(self.cgroup)
        shutil.rmtree(self.directory, ignore_errors=True)

    def fio(self, directory, name, *words, little_memory=False):
        command = ["fio", f"--name={name}", f"--directory={directory}", "--output-format=json", *words]
        if little_memory and self.cgroup:
            inside = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
            command = ["sh", "-c", inside, self.cgroup, *command]
        job = json.loads(run(*command))["jobs"][0]
        return job

    def random(self, directory, direct):
        size = self.file_mib // 8
        words = ["--rw=randwrite", "--bs=4k", "--numjobs=8", "--thread", "--group_reporting", f"--size={size}M",
                 "--filename_format=random.$jobnum", "--time_based", f"--runtime={self.seconds}", "--end_fsync=1",
                 "--ioengine=psync", f"--direct={int(direct)}", f"--randseed={random.randrange(1 << 30)}"]
        begun = time.monotonic()
        job = self.fio(directory, "random", *words, little_memory=not direct)
        # What waits in memory counts when it is durable.
        return job["write"]["total_ios"] / (time.monotonic() - begun)

    def lay_out(self, directory):
        for number in range(8):
            with open(f"{directory}/random.{number}", "wb") as file:
                for _ in range(self.file_mib // 8):
                    file.write(os.urandom(1 << 20))
                os.fsync(file.fileno())
        os.mkdir(f"{directory}/files")

    def measure(self, what, place):
        directory = place.directory
        if what in MICRO:
            return self.random(directory, what == "random-direct")
        load = {"varmail": varmail, "fileserver": fileserver, "postmark": postmark}[what]
        return load(directory, self.seconds, place.durable)


def threads(count, seconds, step):
    """Steps a second of `count` threads; `step(number, random)` is one."""
    done, end, errors = [0] * count, time.monotonic() + seconds, []

    def work(number):
        chance = random.Random(number)
        try:
            while time.monotonic() < end:
                step(number, chance)
                done[number] += 1
        except Exception as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    begun = time.monotonic()
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    if errors:
        raise errors[0]
    return sum(done) / (time.monotonic() - begun)


def write(path, data, append=False, sync=False):
    with open(path, "ab" if append else "wb", buffering=0) as file:
        file.write(data)
        if sync:
            os.fsync(file.fileno())


def read(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


def varmail(directory, seconds, _):
    """As Filebench's: delete, create and sync, read and append and sync, read; files of 16 KiB, 16 threads."""
    data = os.urandom(16384)

    def step(number, chance):
        name = f"{directory}/files/mail-{number}-{chance.randrange(60)}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        write(name, data, sync=True)
        read(name)
        write(name, data[: chance.randrange(1, 16384)], append=True, sync=True)
        read(name)

    return threads(16, seconds, step)


def fileserver(directory, seconds, durable):
    """As Filebench's: create a whole file, append, read all, delete, stat; files of 128 KiB, 16 threads; durable at the
    end."""
    data = os.urandom(131072)

    def step(number, chance):
        name = f"{directory}/files/serve-{number}-{chance.randrange(30)}"
        write(name, data)
        write(name, data[: chance.randrange(1, 16384)], append=True)
        read(name)
        os.stat(name)
        if chance.random() < 0.5:
            os.unlink(name)

    begun = time.monotonic()
    rate = threads(16, seconds, step)
    spent = time.monotonic() - begun
    durable()
    return rate * spent / (time.monotonic() - begun)


def postmark(directory, seconds, durable):
    """As PostMark: a pool of files of 0.5 to 10 KiB; create or delete, read or append; durable at the end."""
    data, pool = os.urandom(10240), {}

    def step(_, chance):
        name = f"{directory}/files/post-{chance.randrange(500)}"
        if name in pool and chance.random() < 0.5:
            del pool[name]
            os.unlink(name)
        elif name not in pool:
            pool[name] = True
            write(name, data[: chance.randrange(512, 10240)])
        if pool:
            other = chance.choice(list(pool))
            if chance.random() < 0.5:
                read(other)
            else:
                write(other, data[: chance.randrange(1, 4096)], append=True)

    begun = time.monotonic()
    rate = threads(1, seconds, step)
    spent = time.monotonic() - begun
    durable()
    return rate * spent / (time.monotonic() - begun)


def compare(bench, kind, disk):
    """The medians of the ratios of each load: with the overlay to without."""
    ratios, rates = {what: [] for what in MICRO + MACRO}, {what: [] for what in MICRO + MACRO}
    with Place(bench, kind, disk, 0) as bare, Place(bench, kind, disk, 1) as over:
        for place in (bare, over):
            bench.lay_out(place.directory)
        over.cover()
        for turn in range(bench.options.turns):
            for what in MICRO + MACRO:
                order = [bare, over] if turn % 2 == 0 else [over, bare]
                found = {place: bench.measure(what, place) for place in order}
                ratios[what].append(found[over] / found[bare])
                rates[what].append(found[bare])
                print(f"{disk} {kind} {what}: {found[bare]:.0f}/s bare, {found[over]:.0f}/s overlay", flush=True)
    return {what: (statistics.median(ratios[what]), min(ratios[what]), max(ratios[what]),
                   statistics.median(rates[what])) for what in ratios}


def seconds_of(work):
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def figures(bench, disk):
    """Those of DESIGN that the paper does not have, on ext4: bare, overlay, and bindfs, which only passes on."""
    rows = {}
    with Place(bench, "ext4", disk, 2) as bare, Place(bench, "ext4", disk, 3) as over, \
            Place(bench, "ext4", disk, 4) as lower:
        passed = f"{lower.root}/passed"
        os.mkdir(passed)
        sides = {"bare": bare.directory, "overlay": over.directory, "bindfs": passed}
        for place in (bare, over, lower):
            bench.lay_out(place.directory)
        over.cover()
        run("bindfs", lower.directory, passed)
        tree = f"{bench.directory}/tree.tar"
        count = 200 if bench.options.quick else 4000
        run("sh", "-c", f"find /usr/include /usr/share -xdev -type f -size -64k 2>/dev/null | sort | head -n {count} | "
            f"tar -cf {tree} -T - 2>/dev/null")
        for turn in range(bench.options.turns):
            order = list(sides) if turn % 2 == 0 else list(reversed(sides))
            for side in order:
                at, note = sides[side], lambda what, rate: rows.setdefault(what, {}).setdefault(side, []).append(rate)
                with open("/proc/sys/vm/drop_caches", "w") as file:
                    file.write("1")
                size = bench.file_mib // 8
                job = bench.fio(at, "read", "--rw=read", "--bs=1M", f"--size={size}M", "--filename=random.0",
                                "--ioengine=psync")
                note("read in sequence, untouched", job["read"]["bw"])
                os.mkdir(f"{at}/tree")
                note("untar", 1 / seconds_of(lambda: run("tar", "-xf", tree, "-C", f"{at}/tree")))
                git = ["git", "-C", f"{at}/tree", "-c", "safe.directory=*", "-c", "user.name=a", "-c", "user.email=a@b"]
                run(*git, "init", "-q")
                run(*git, "add", "-A")
                run(*git, "commit", "-qm", "tree")
                run(*git, "status")
                note("git status, warm", 1 / seconds_of(lambda: run(*git, "status")))
                note("rm -r", 1 / seconds_of(lambda: shutil.rmtree(f"{at}/tree")))
                job = bench.fio(at, "write", "--rw=write", "--bs=1M", f"--size={size}M", "--filename=written",
                                "--ioengine=psync", "--end_fsync=1")
                note("write in sequence", job["write"]["bw"])
        rows.update(settle(bench, over, rows))
    return rows


def settle(bench, over, rows):
    """Bringing home what was overwritten at random, beside writing as much in sequence below."""
    bench.random(over.directory, True)
    told = json.loads(bench.coulter("overlay", "status", over.directory, "--json"))
    spent = seconds_of(lambda: bench.coulter("overlay", "settle", over.directory))
    bare = statistics.median(rows["write in sequence"]["bare"])
    return {"bringing home / write in sequence": {"bare": [bare], "overlay": [told["stored_bytes"] / 1024 / spent]}}


def outcome(bench, results, rows):
    """What `coulter-lab report --measured` shows."""
    heading = ["disk, file system"] + MICRO + MACRO + ["paper, micro", "paper, macro"]
    table, wins, reasons = [], 0, []
    for (disk, kind), found in results.items():
        cells = [f"{found[what][0]:.2f} ({found[what][1]:.2f} to {found[what][2]:.2f})" for what in MICRO + MACRO]
        paper = [f"{percent / 100:.2f}" for percent in PAPER[kind]]
        table.append([f"{disk}, {kind}"] + cells + paper)
        wins += found["random-direct"][0] >= PAPER[kind][0] / 100
        lower = [what for what in MICRO + MACRO if found[what][0] < PAPER[kind][0 if what in MICRO else 1] / 100]
        if lower:
            reasons.append(f"{disk}, {kind}: lower in {', '.join(lower)}.")
    tables = [{"heading": heading, "rows": table}]
    if rows:
        ratio = lambda side, sides: f"{statistics.median(sides[side]) / statistics.median(sides['bare']):.2f}" \
            if side in sides else ""
        tables.append({"heading": ["rate / bare ext4", "overlay", "bindfs"],
                       "rows": [[what, ratio("overlay", sides), ratio("bindfs", sides)]
                                for what, sides in rows.items()]})
    why = ("The paper's module is in the kernel: it costs no message. The overlay is served through FUSE, where each "
           "request costs two switches between processes, and one thread serves the mount. So it wins where the disk is "
           "the limit for single writes, and loses where memory or the processor is. Loads of new files and appends "
           "(varmail, fileserver, PostMark) have no random overwrites that the overlay would send to the store: they "
           "show what FUSE costs. ")
    verdict = "holds" if wins == len(results) else "partly" if wins else "differs"
    setup = (f"{bench.file_mib} MiB in 8 files, turns {bench.options.turns} of {bench.seconds} s in alternating order, "
             f"buffered writes in {bench.memory_mib} MiB of memory, the median of ratios with its range; "
             f"{os.cpu_count()} processors, Linux {os.uname().release}.")
    return [{"id": "SV-mounts", "title": "sVFS as a mounted overlay: rates with it / without it",
             "paper": "Write throughput with remapping at the VFS: +27, +36, +34 % and 2.35 times for ext4, F2FS, XFS and "
                      "Btrfs (micro), +25, +22, +20 % and 3.51 times (macro).",
             "setup": setup, "tables": tables, "plots": [], "verdict": verdict, "reason": why + " ".join(reasons)}]


def main():
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: what comes out says nothing")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--file-mib", type=int, default=256)
    parser.add_argument("--lowers", default="ext4,xfs,btrfs")
    parser.add_argument("--disks", default="this,cloud")
    parser.add_argument("--figures", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--coulter", default=f"{root}/target/release/coulter")
    parser.add_argument("--laboratory", default=f"{root}/target/release/coulter-lab")
    bench = Bench(parser.parse_args())
    try:
        results, rows = {}, {}
        for disk in bench.options.disks.split(","):
            for kind in bench.options.lowers.split(","):
                results[disk, kind] = compare(bench, kind, disk)
        if bench.options.figures:
            rows = figures(bench, bench.options.disks.split(",")[0])
        found = outcome(bench, results, rows)
        for table in found[0]["tables"]:
            for row in [table["heading"]] + table["rows"]:
                print("  ".join(f"{cell:>22}" for cell in row))
        if bench.options.json:
            with open(bench.options.json, "w") as file:
                json.dump(found, file, indent=1)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
