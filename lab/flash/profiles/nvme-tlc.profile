# An NVMe drive of TLC flash, 4 GiB of it: 32 dies behind a PCIe link of 3.2 GB/s, 7 % spare.
# Assumed: cell times as for the SATA drive, and about 700 000 commands a second.
name = nvme-tlc
channels = 8
dies_per_channel = 4
planes_per_die = 2
erase_blocks = 4384
exported_erase_blocks = 4096
pages_per_block = 256
page_size = 4096
read_ns = 60_000
program_ns = 700_000
pages_per_program = 4
erase_ns = 3_500_000
channel_bytes_per_us = 800
link_bytes_per_us = 3200
command_ns = 1_200
page_ns = 100
command_size_max = 131072
queue_depth = 128
buffer_pages = 4096
buffer_combines = yes
map_cache_entries = 262144
log_blocks = 64
