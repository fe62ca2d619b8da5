//! Limits of a device as people write them: `cloud`, or `latency=1ms,iops=3000,bandwidth=125M`.

use coulter_bench::Limits;
use coulter_device::wrap::SlowModel;
use coulter_terminal::Size;
use std::time::Duration;

/// For the command line. The caps that are not named are none.
pub(crate) fn parse_limits(text: &str) -> Result<Limits, String> {
    if text == "cloud" {
        return Ok(Limits::CLOUD);
    }
    let mut model = SlowModel {
        latency: Duration::ZERO,
        operations_per_second: None,
        bytes_per_second: None,
        ..SlowModel::CLOUD_VOLUME
    };
    for part in text.split(',') {
        let (name, value) = part.split_once('=').ok_or_else(|| {
            format!("'{part}' is neither cloud nor latency=, iops= or bandwidth= and a value")
        })?;
        match name {
            "latency" => model.latency = parse_latency(value)?,
            "iops" => {
                let rate = value.parse::<u64>().ok().filter(|rate| *rate > 0);
                let rate = rate.ok_or_else(|| format!("'{value}' is no number above zero"))?;
                model.operations_per_second = Some(rate);
            }
            "bandwidth" => {
                let Size(rate) = value.parse::<Size>().map_err(|error| error.to_string())?;
                if rate == 0 {
                    return Err("a bandwidth of zero would take for ever".to_owned());
                }
                model.bytes_per_second = Some(rate);
            }
            _ => return Err(format!("'{name}' is no limit; there are latency, iops, bandwidth")),
        }
    }
    Ok(Limits(model))
}

fn parse_latency(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let found = units.iter().find_map(|(unit, seconds)| {
        let number = text.strip_suffix(unit)?.parse::<f64>().ok()?;
        Some(number * seconds)
    });
    match found {
        Some(seconds) if (0.0..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        Some(_) => Err("a latency is from 0us to 60s".to_owned()),
        None => Err(format!("'{text}' is no latency; write 100us, 1.5ms or 1s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_written() {
        assert_eq!(parse_limits("cloud"), Ok(Limits::CLOUD));
        assert_eq!(parse_limits("latency=1ms,iops=3000,bandwidth=125M"), Ok(Limits::CLOUD));
        let Limits(model) = parse_limits("latency=100us").expect("one limit is enough");
        assert_eq!(model.latency, Duration::from_micros(100));
        assert_eq!((model.operations_per_second, model.bytes_per_second), (None, None));
    }

    #[test]
    fn what_is_no_limit_is_refused_in_words() {
        for (text, word) in [
            ("", "neither"),
            ("clouds", "neither"),
            ("speed=3", "no limit"),
            ("latency=3", "no latency"),
            ("latency=61s", "from 0us"),
            ("latency=-1ms", "from 0us"),
            ("iops=0", "above zero"),
            ("bandwidth=0", "for ever"),
            ("bandwidth=3MB", "ambiguous"),
        ] {
            let refused = parse_limits(text).expect_err(text);
            assert!(refused.contains(word), "{text}: {refused}");
        }
    }
}
