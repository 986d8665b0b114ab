use proptest::prelude::*;

use super::*;

fn block(values: &[u64]) -> Block {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let mut bins: Vec<(u64, u64)> = Vec::new();
    for v in sorted {
        match bins.last_mut() {
            Some((last, n)) if *last == v => *n += 1,
            _ => bins.push((v, 1)),
        }
    }
    let sum_ns = values.iter().map(|v| u128::from(*v)).sum();
    Block { count: values.len() as u64, sum_ns, bins }
}

#[test]
fn a_quantile_takes_ten_samples_beyond_it() {
    for (ppm, least) in
        [(500_000, 20), (900_000, 100), (990_000, 1000), (999_000, 10_000), (999_900, 100_000)]
    {
        assert!(carries(least, ppm) && !carries(least - 1, ppm), "{ppm}");
    }
}

#[test]
fn pooled_quantiles_are_those_of_all_samples() {
    let all: Vec<u64> = (1..=1000).collect();
    let blocks: Vec<Block> = (0..7)
        .map(|b| block(&all.iter().copied().filter(|v| v % 7 == b).collect::<Vec<_>>()))
        .collect();
    let pool = Pool::new(&blocks);
    let ones = pool.ones();
    assert_eq!(pool.quantile(&ones, 500_000), 500.0);
    assert_eq!(pool.quantile(&ones, 990_000), 990.0);
    assert_eq!(pool.quantile(&ones, 999_900), 1000.0);
    assert_eq!(pool.mean(&ones), 500.5);
    assert_eq!((pool.count(), pool.sum_ns()), (1000, 500_500));
}

#[test]
fn weights_count_blocks_as_often() {
    let pool = Pool::new(&[block(&[10]), block(&[20]), block(&[30])]);
    assert_eq!(pool.mean(&[2, 0, 1]), 50.0 / 3.0);
    assert_eq!(pool.quantile(&[2, 0, 1], 500_000), 10.0);
    assert_eq!(pool.quantile(&[0, 1, 2], 500_000), 30.0);
    assert!(pool.mean(&[0, 0, 0]).is_nan());
}

#[test]
fn one_block_has_no_interval() {
    assert!(Resamples::new(0).is_none() && Resamples::new(1).is_none());
    assert!(Resamples::new(2).is_some());
}

#[test]
fn tails_widen_for_few_repeats_and_approach_the_normal_ones() {
    // Hesterberg, table 4: n = 10 takes the 0.86 % tails for 95 %.
    assert!((tail_probability(10) - 0.0086).abs() < 0.0002, "{}", tail_probability(10));
    assert!(tail_probability(3) < 1e-6);
    assert!((tail_probability(1000) - 0.025).abs() < 0.0005);
    let all: Vec<f64> = (2..60).map(tail_probability).collect();
    assert!(all.is_sorted());
}

#[test]
fn students_quantile_meets_its_table() {
    for (freedom, t) in [(9.0, 2.2622), (10.0, 2.2281), (20.0, 2.0860), (120.0, 1.9799)] {
        assert!((student_975(freedom) - t).abs() < 2e-4, "{freedom}");
    }
}

#[test]
fn draws_are_the_same_every_time() {
    let (a, b) = (Resamples::new(10).unwrap(), Resamples::new(10).unwrap());
    assert_eq!(a.weights, b.weights);
    // Known answer: a change of the generator would change every published interval.
    assert_eq!(a.weights[..10], [2, 0, 2, 0, 2, 2, 1, 1, 0, 0]);
    assert!(a.weights.chunks(10).all(|row| row.iter().sum::<u16>() == 10));
    for blocks in [2, 3, 5, 10, MAX_BLOCKS] {
        let drawn = Resamples::new(blocks).unwrap();
        let times: usize = drawn.times.iter().map(|n| usize::from(*n)).sum();
        assert_eq!((times, drawn.weights.len()), (RESAMPLES, drawn.times.len() * blocks));
    }
    // Of five blocks 126 draws can be different, of which some are rare.
    assert!((110..=126).contains(&Resamples::new(5).unwrap().times.len()));
    assert_eq!(Resamples::shared(10).unwrap().weights, a.weights);
    assert!(Resamples::shared(1).is_none());
}

proptest! {
    /// Rows that are kept once count as often as they were drawn.
    #[test]
    fn an_interval_is_that_of_all_draws_in_order(values in prop::collection::vec(-9.0..9.0f64, 2..14)) {
        let resamples = Resamples::new(values.len()).unwrap();
        let rows = resamples.weights.chunks_exact(values.len()).zip(&resamples.times);
        let mut all: Vec<f64> = rows
            .flat_map(|(row, n)| vec![weighted_mean(row, &values); usize::from(*n)])
            .collect();
        all.sort_by(f64::total_cmp);
        let plain = [all[resamples.tail], all[RESAMPLES - 1 - resamples.tail]];
        prop_assert_eq!(resamples.interval(|w| weighted_mean(w, &values)), Some(plain));
    }
}

/// Repeats of a known distribution: the interval must hold the truth about as often as it says.
#[test]
fn intervals_of_means_hold_the_truth() {
    let mut rng = Pcg64Mcg::new(42);
    let resamples = Resamples::new(10).unwrap();
    // Uniform in 0..2000: the mean is 999.5.
    let mut draw = || ((u128::from(rng.next_u64()) * 2000) >> 64) as f64;
    let rounds = 400;
    let hits = (0..rounds)
        .filter(|_| {
            let values: Vec<f64> = (0..10).map(|_| draw()).collect();
            let [lo, hi] = resamples.interval(|w| weighted_mean(w, &values)).unwrap();
            lo <= 999.5 && 999.5 <= hi
        })
        .count();
    // 95 % of 400 is 380, with a standard deviation of 4.4.
    assert!((362..=396).contains(&hits), "{hits} of {rounds}");
}

/// What both sides share cancels in a paired ratio, but would drown an unpaired one.
#[test]
fn pairing_sharpens_ratios() {
    let base: Vec<f64> = (0..10).map(|r| 100.0 * f64::from(1 + r * r)).collect();
    let mine: Vec<f64> = base.iter().map(|v| v * 0.9).collect();
    let resamples = Resamples::new(10).unwrap();
    let ratio = |w: &[u16]| quotient(weighted_mean(w, &mine), weighted_mean(w, &base));
    let [lo, hi] = resamples.interval(ratio).unwrap();
    assert!((lo - 0.9).abs() < 1e-9 && (hi - 0.9).abs() < 1e-9);
    let [lo, hi] = resamples.interval(|w| weighted_mean(w, &mine)).unwrap();
    assert!(hi / lo > 3.0, "the spread itself is large");
}

#[test]
fn ratios_to_zero_have_no_interval() {
    let resamples = Resamples::new(5).unwrap();
    let (some, none) = ([1.0; 5], [0.0; 5]);
    let ratio = |a: &[f64], b: &[f64]| {
        resamples.interval(|w| quotient(weighted_mean(w, a), weighted_mean(w, b)))
    };
    assert_eq!(ratio(&some, &none), None);
    assert_eq!(ratio(&none, &none), None);
    assert_eq!(ratio(&none, &some), Some([0.0, 0.0]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn quantiles_are_order_statistics(
        blocks in prop::collection::vec(prop::collection::vec(0u64..500, 1..40), 1..6),
        ppm in 1u64..1_000_000,
    ) {
        let pool = Pool::new(&blocks.iter().map(|b| block(b)).collect::<Vec<_>>());
        let mut all: Vec<u64> = blocks.concat();
        all.sort_unstable();
        let rank = (all.len() as u64 * ppm).div_ceil(1_000_000).max(1);
        prop_assert_eq!(pool.quantile(&pool.ones(), ppm), all[rank as usize - 1] as f64);
    }

    #[test]
    fn intervals_lie_within_the_values(values in prop::collection::vec(-1e6f64..1e6, 2..20)) {
        let resamples = Resamples::new(values.len()).unwrap();
        let [lo, hi] = resamples.interval(|w| weighted_mean(w, &values)).unwrap();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        prop_assert!(lo <= hi && least - 1e-6 <= lo && hi <= most + 1e-6);
    }
}
