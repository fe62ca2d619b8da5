use super::*;
use std::io::{self, Cursor, Read};

/// All lines of a trace whose format is found out.
fn lines(text: &str) -> Vec<Line> {
    lines_with(text.as_bytes(), &ReaderOptions::default())
}

fn lines_with(text: &[u8], options: &ReaderOptions) -> Vec<Line> {
    let mut reader = Reader::new(Cursor::new(text), options).expect("a known format");
    let mut lines = Vec::new();
    while let Some(line) = reader.next_line().expect("memory can be read") {
        lines.push(line);
    }
    assert_eq!(reader.line_number(), lines.len() as u64);
    lines
}

fn request(device: u16, kind: Kind, offset: u64, length: u64) -> Line {
    Line::Request(Request { device, kind, offset, length })
}

const BLKPARSE: &str = "\
  8,0    3        1     0.000000000   697  Q  WS 16 + 8 [kjournald]
  8,0    3        2     0.000001829   697  G  WS 16 + 8 [kjournald]
  8,0    3        3     0.000002000   697  P   N [kjournald]
  8,16   3        4     0.000003000   697  Q   R 100 + 2 [a b]
  8,0    3        5     0.000003500     0  m   N cfq697 dispatch
  8,0    3        6     0.000004000   697  Q  DS 0 + 2048 [fstrim]
  8,0    3        7     0.000005000   697  Q FWFS [kjournald]
  8,0    3        8     0.000005000   697  Q FWS 24 + 8 [kjournald]
  8,0    3        9     0.000005000   697  Q   W what + 8 [kjournald]
CPU0 (sda):
 Reads Queued:           1,        1KiB\t Writes Queued:           2,        8KiB
";

#[test]
fn of_blkparse_s_output_one_action_counts() {
    let lines = lines(BLKPARSE);
    let requests: Vec<_> = lines.iter().copied().filter(|line| *line != Line::Other).collect();
    assert_eq!(
        requests,
        [
            request(0, Kind::Write, 8192, 4096),
            request(1, Kind::Read, 51_200, 1024),
            request(0, Kind::Discard, 0, 1 << 20),
            request(0, Kind::Flush, 0, 0),
            request(0, Kind::Write, 12_288, 4096),
            Line::Bad(BadLine::Number),
        ]
    );
    let options = ReaderOptions { action: Some("G".to_string()), ..ReaderOptions::default() };
    let got = lines_with(BLKPARSE.as_bytes(), &options);
    assert_eq!(got[1], request(0, Kind::Write, 8192, 4096));
    assert_eq!(got.iter().filter(|line| matches!(line, Line::Request(_))).count(), 1);
}

#[test]
fn requests_of_other_actions_are_counted() {
    let text = "8,0 0 1 0.1 5 D W 8 + 8 [x]\n8,0 0 2 0.2 5 C W 8 + 8 [0]\n";
    let mut reader = Reader::new(Cursor::new(text), &ReaderOptions::default()).expect("blkparse");
    while reader.next_line().expect("memory can be read").is_some() {}
    assert_eq!(reader.other_actions(), 2);
    let options = ReaderOptions { action: Some("DC".to_string()), ..ReaderOptions::default() };
    let refused = Reader::new(Cursor::new(text), &options).expect_err("no action");
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn msr_cambridge_is_read() {
    let text = "128166372003061629,hm,0,Read,383496192,32768,413\n\
                128166372016382155,hm,1,Write,2822144,4096,17\n\
                128166372016382155,hm,1,Wrote,2822144,4096,17\n\
                128166372016382155,hm,1\n";
    assert_eq!(
        lines(text),
        [
            request(0, Kind::Read, 383_496_192, 32_768),
            request(1, Kind::Write, 2_822_144, 4096),
            Line::Bad(BadLine::Kind),
            Line::Bad(BadLine::TooFewFields),
        ]
    );
}

#[test]
fn both_versions_of_fio_s_log_are_read() {
    let two = "fio version 2 iolog\n/dev/a add\n/dev/a open\n/dev/a write 4096 8192\n\
               /dev/a sync 0 0\n/dev/b trim 0 4096\n/dev/a close\n";
    let three = "fio version 3 iolog\n0 /dev/a add\n1 /dev/a open\n2 /dev/a write 4096 8192\n\
                 3 /dev/a sync 0 0\n3 /dev/b trim 0 4096\n9 /dev/a close\n";
    for text in [two, three] {
        let requests: Vec<_> =
            lines(text).into_iter().filter(|line| *line != Line::Other).collect();
        let due = [
            request(0, Kind::Write, 4096, 8192),
            request(0, Kind::Flush, 0, 0),
            request(1, Kind::Discard, 0, 4096),
        ];
        assert_eq!(requests, due, "{text}");
    }
}

#[test]
fn columns_are_found_by_their_names() {
    let systor = "Timestamp,Response,IOType,LUN,Offset,Size\n1.5,0.1,W,4,8192,512\n";
    assert_eq!(lines(systor), [Line::Other, request(0, Kind::Write, 8192, 512)]);
    let sectors = "op,lba,sectors\nR,16,8\ntrim,0,1\n\n# a remark\n";
    assert_eq!(
        lines(sectors)[1..3],
        [request(0, Kind::Read, 8192, 4096), request(0, Kind::Discard, 0, 512)]
    );
    assert_eq!(lines(sectors)[3..], [Line::Other, Line::Other]);
    assert_eq!(
        lines("w,4096,4096\nR,0,512\n"),
        [request(0, Kind::Write, 4096, 4096), request(0, Kind::Read, 0, 512)]
    );
}

#[test]
fn traces_without_a_header_are_told_apart() {
    assert_eq!(
        lines("419,W,8792731648,16384,1577808144360767\n"),
        [request(0, Kind::Write, 8_792_731_648, 16_384)]
    );
    assert_eq!(
        lines("1538323200,12910952,128,0,1063\n"),
        [request(0, Kind::Read, 12_910_952 * 512, 128 * 512)]
    );
    assert_eq!(
        lines("938513000 4 264719034 16 0\n"),
        [request(0, Kind::Write, 264_719_034 * 512, 8192)]
    );
}

#[test]
fn the_format_s_name_is_read_back() {
    for format in Format::ALL {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    let error = "spc".parse::<Format>().expect_err("not known").to_string();
    assert!(error.contains("blkparse, msr"), "{error}");
}

#[test]
fn one_device_of_several_can_be_chosen() {
    let text = "1 a 8 8 0\n";
    let format = Some(Format::Mqsim);
    let only = |device: &str| {
        let options = ReaderOptions { format, device: Some(device.to_string()), action: None };
        lines_with(text.as_bytes(), &options)
    };
    assert_eq!(only("a"), [request(0, Kind::Write, 4096, 4096)]);
    assert_eq!(only("b"), [Line::Other]);
}

#[test]
fn ranges_that_no_device_has_are_bad() {
    for line in ["w,0,0", "w,18446744073709551615,1", "w,36028797018963968,1", "w,-1,4096"] {
        let options = ReaderOptions { format: Some(Format::Csv), ..ReaderOptions::default() };
        assert!(matches!(lines_with(line.as_bytes(), &options)[..], [Line::Bad(_)]), "{line}");
    }
    let options = ReaderOptions { format: Some(Format::Tencent), ..ReaderOptions::default() };
    let line = "1,18446744073709551615,8,1,9";
    assert_eq!(lines_with(line.as_bytes(), &options), [Line::Bad(BadLine::Number)]);
}

#[test]
fn nonsense_is_no_format_and_a_long_line_is_one_bad_line() {
    for text in ["", "hello\nworld\n", "\u{0}\u{1}\n"] {
        let error = Reader::new(Cursor::new(text), &ReaderOptions::default()).expect_err("none");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text:?}");
    }
    let mut text = b"w,0,4096\n".to_vec();
    text.extend(vec![b'x'; 5 * LINE_SIZE_MAX]);
    text.extend(b"\nw,4096,4096\n\xff\xfe\nw,8192,512");
    assert_eq!(
        lines_with(&text, &ReaderOptions::default()),
        [
            request(0, Kind::Write, 0, 4096),
            Line::Bad(BadLine::TooLong),
            request(0, Kind::Write, 4096, 4096),
            Line::Bad(BadLine::NotText),
            request(0, Kind::Write, 8192, 512),
        ]
    );
}

#[test]
fn more_devices_than_a_trace_may_have_are_bad_lines() {
    let text: String = (0..DEVICES_MAX + 2).map(|n| format!("{n},W,0,4096,1\n")).collect();
    let bad = lines(&text).into_iter().filter(|line| *line == Line::Bad(BadLine::TooManyDevices));
    assert_eq!(bad.count(), 2);
}

/// Damaged lines of every format, made from good ones by changing bytes.
#[test]
fn no_line_causes_a_panic() {
    let good = [
        BLKPARSE,
        "128166372003061629,hm,0,Read,383496192,32768,413\n",
        "fio version 3 iolog\n0 /dev/a add\n2 /dev/a write 4096 8192\n",
        "op,lba,sectors\nR,16,8\n",
        "1538323200,12910952,128,0,1063\n",
        "938513000 4 264719034 16 0\n",
    ];
    let mut random = crate::Random::new(3);
    for _ in 0..20_000 {
        let text = good[random.below(good.len() as u64) as usize];
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..1 + random.below(6) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.bits() as u8;
        }
        for format in Format::ALL {
            let options = ReaderOptions { format: Some(format), ..ReaderOptions::default() };
            for line in lines_with(&bytes, &options) {
                if let Line::Request(request) = line {
                    assert!(request.offset + request.length <= OFFSET_MAX);
                    assert_eq!(request.length == 0, request.kind == Kind::Flush);
                }
            }
        }
    }
}

#[test]
fn devices_are_told_apart_whatever_their_column_is_called() {
    let names =
        ["device_id", "DeviceID", "volume_id", "VolumeId", "dev", "DiskNumber", "disk no", "lun"];
    for name in names.into_iter().chain(["ns_id", "nsid", "drive", "Vol-ID", "hostname", "minor"]) {
        let text = format!("ts,{name},op,offset,length\n1,7,W,0,4096\n2,8,W,0,4096\n");
        let due = [request(0, Kind::Write, 0, 4096), request(1, Kind::Write, 0, 4096)];
        assert_eq!(lines(&text)[1..], due, "{name}");
        let only = ReaderOptions { device: Some("8".to_string()), ..ReaderOptions::default() };
        let got = lines_with(text.as_bytes(), &only);
        assert_eq!(got[1..], [Line::Other, request(0, Kind::Write, 0, 4096)], "{name}");
    }
}

#[test]
fn disks_of_one_number_on_two_hosts_are_two() {
    let header = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n";
    let text = "128166372003061629,hm,0,Write,0,4096,1\n128166372003061629,src,0,Write,0,4096,1\n";
    let due = [request(0, Kind::Write, 0, 4096), request(1, Kind::Write, 0, 4096)];
    assert_eq!(lines(text), due);
    assert_eq!(lines(&format!("{header}{text}"))[1..], due);
    let only = ReaderOptions { device: Some("src/0".to_string()), ..ReaderOptions::default() };
    assert_eq!(lines_with(text.as_bytes(), &only), [Line::Other, request(0, Kind::Write, 0, 4096)]);
}

#[test]
fn columns_that_tell_nothing_are_named() {
    let text = "ts,op,offset,length,cg\n1,W,0,4096,9\n";
    let mut reader = Reader::new(Cursor::new(text), &ReaderOptions::default()).expect("csv");
    while reader.next_line().expect("memory can be read").is_some() {}
    assert_eq!(reader.ignored_columns(), ["ts", "cg"]);
}

#[test]
fn flushes_of_blkparse_count_in_each_action() {
    let line = |action| format!("8,0 3 7 0.000005000 697 {action} FWS [kjournald]\n");
    for (action, flags) in [("Q", "FWS"), ("Q", "FF"), ("D", "FN"), ("Q", "FWFS")] {
        let text = line(action).replace("FWS", flags);
        let options = ReaderOptions { action: Some(action.to_string()), ..Default::default() };
        assert_eq!(
            lines_with(text.as_bytes(), &options),
            [request(0, Kind::Flush, 0, 0)],
            "{text}"
        );
    }
    let mut reader =
        Reader::new(Cursor::new(line("D")), &ReaderOptions::default()).expect("blkparse");
    while reader.next_line().expect("memory can be read").is_some() {}
    assert_eq!(reader.other_actions(), 1);
}

#[test]
fn a_request_that_no_device_takes_is_a_bad_line() {
    assert_eq!(lines("w,0,1099511627776\n"), [Line::Bad(BadLine::Length)]);
    assert_eq!(lines("r,0,1073741825\n"), [Line::Bad(BadLine::Length)]);
    assert_eq!(lines("w,0,1073741824\n"), [request(0, Kind::Write, 0, 1 << 30)]);
    // A discard of a whole disk is one request.
    assert_eq!(lines("d,0,1099511627776\n"), [request(0, Kind::Discard, 0, 1 << 40)]);
}

#[test]
fn a_line_without_end_is_given_up() {
    let endless = io::BufReader::new(io::repeat(b'x').take(1 << 40));
    let options = ReaderOptions { format: Some(Format::Csv), ..ReaderOptions::default() };
    let mut reader = Reader::new(endless, &options).expect("the format is told");
    let error = reader.next_line().expect_err("no trace").to_string();
    assert!(error.contains("line 1 does not end within 64 MiB"), "{error}");
}

#[test]
fn an_empty_trace_is_called_empty() {
    for (text, said) in [("", "it is empty"), ("\n  \n", "its first lines are empty")] {
        let error = Reader::new(Cursor::new(text), &ReaderOptions::default()).expect_err("none");
        assert!(error.to_string().contains(said), "{error}");
    }
}
