# The Jasmine OpenSSD board of the S-LFS paper: 3 GiB of MLC, pages of 16 KiB, 128 to an erase
# block, 1536 exported and 46 spare erase blocks (3 %), eight banks on four channels.
# The paper gives no times. Assumed: MLC cell times of FEMU (64 us, mean of 0.85 and 2.3 ms, 3 ms);
# 8192 bus cycles of 30 ns for a page; SATA 2; write commands are passed on as they come, as the
# board's firmware does. Map cache: 24 KiB of 8-byte entries; the paper does not give its size.
name = openssd
channels = 4
dies_per_channel = 2
planes_per_die = 1
erase_blocks = 1582
exported_erase_blocks = 1536
pages_per_block = 128
page_size = 16384
read_ns = 64_000
program_ns = 1_575_000
pages_per_program = 1
erase_ns = 3_000_000
channel_bytes_per_us = 67
link_bytes_per_us = 250
command_ns = 30_000
page_ns = 1_000
command_size_max = 524288
queue_depth = 32
buffer_pages = 32
buffer_combines = no
map_cache_entries = 3072
log_blocks = 32
