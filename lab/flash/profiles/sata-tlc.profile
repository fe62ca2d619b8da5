# A SATA drive of TLC flash, 2 GiB of it: 16 KiB program units of four 4 KiB pages, 7 % spare.
# Assumed: cell times near those published for 64-layer TLC; 90 000 commands a second, as such
# drives are specified for 4 KiB random writes; 530 MB/s over the link. Real drives have more dies.
name = sata-tlc
channels = 4
dies_per_channel = 2
planes_per_die = 2
erase_blocks = 2192
exported_erase_blocks = 2048
pages_per_block = 256
page_size = 4096
read_ns = 60_000
program_ns = 900_000
pages_per_program = 4
erase_ns = 3_500_000
channel_bytes_per_us = 400
link_bytes_per_us = 530
command_ns = 10_500
page_ns = 300
command_size_max = 524288
queue_depth = 32
buffer_pages = 1024
buffer_combines = yes
map_cache_entries = 65536
log_blocks = 32
