# A QLC drive that maps 16 KiB at a time (its indirection unit), 4 GiB of it, 7 % spare.
# Cell times: 96-layer QLC as in FEMU's table (reads 48 to 228 us, programs 1.86 ms, erases 6.34 ms).
name = qlc-iu16k
channels = 4
dies_per_channel = 4
planes_per_die = 2
erase_blocks = 1096
exported_erase_blocks = 1024
pages_per_block = 256
page_size = 16384
read_ns = 121_000
program_ns = 1_860_000
pages_per_program = 1
erase_ns = 6_340_000
channel_bytes_per_us = 800
link_bytes_per_us = 2000
command_ns = 2_000
page_ns = 200
command_size_max = 131072
queue_depth = 64
buffer_pages = 512
buffer_combines = yes
map_cache_entries = 65536
log_blocks = 32
