//! What theory says about cleaning under uniform random writes.

/// Write amplification of greedy cleaning under uniform random writes, segments being large and
/// many: a / (a + W(−a·e^−a)) with a = 1 + spare (Xiang and Kurkoski, "An Improved Analytic
/// Expression for Write Amplification in NAND Flash", 2011). Without any metadata. Without spare space there is no end to it.
pub(crate) fn greedy_uniform(spare: f64) -> f64 {
    if spare <= 0.0 {
        return f64::INFINITY;
    }
    let a = 1.0 + spare;
    a / (a + lambert_w(-a * libm::exp(-a)))
}

/// The branch of Lambert's function between −1/e and 0 whose value is above −1: w·e^w = x.
fn lambert_w(x: f64) -> f64 {
    // Newton's method from 0: w·e^w − x is convex and rising above −1, so every step after the
    // first comes from above, and 64 of them are plenty even next to −1/e, where they halve the
    // distance.
    let mut w = 0.0;
    for _ in 0..64 {
        let e = libm::exp(w);
        let step = (w * e - x) / (e * (1.0 + w));
        if !step.is_finite() || step.abs() < 1e-15 {
            break;
        }
        w -= step;
    }
    w
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_values_come_out() {
        for (spare, published) in
            [(0.05, 10.67), (0.1, 5.68), (0.2, 3.19), (0.3, 2.36), (1.0, 1.26)]
        {
            let value = greedy_uniform(spare);
            assert!((value - published).abs() < 0.006, "{spare}: {value}, not {published}");
        }
        assert_eq!((greedy_uniform(0.0), greedy_uniform(-0.1)), (f64::INFINITY, f64::INFINITY));
    }
}
