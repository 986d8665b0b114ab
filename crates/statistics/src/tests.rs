use proptest::prelude::*;

use super::*;

fn block(values: &[u64]) -> Block {
    let bins = values.iter().map(|v| (*v, 1)).collect();
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

/// The interval of a mean.
fn of_mean(values: &[f64]) -> Option<[f64; 2]> {
    interval(values.len(), &|w| weighted_mean(w, values))
}

#[test]
fn one_block_has_no_interval() {
    assert!(of_mean(&[]).is_none() && of_mean(&[1.0]).is_none());
    assert!(of_mean(&[1.0, 2.0]).is_some());
}

#[test]
fn students_quantile_meets_its_table() {
    for (freedom, t) in [(9.0, 2.2622), (10.0, 2.2281), (20.0, 2.0860), (120.0, 1.9799)] {
        assert!((student_975(freedom) - t).abs() < 2e-4, "{freedom}");
    }
}

/// The jackknife of a mean is its standard error, so that the interval is the textbook's.
#[test]
fn the_interval_of_a_mean_is_students() {
    let values = [-2.0, -1.0, 0.0, 1.0, 2.0];
    let [lo, hi] = of_mean(&values).unwrap();
    let reach = 2.7764 * (2.5f64 / 5.0).sqrt();
    assert!((lo + reach).abs() < 1e-9 && (hi - reach).abs() < 1e-9, "{lo} {hi}");
    // On the logarithm both ends are as far as factors, and above zero.
    let [lo, hi] = of_mean(&[1.0, 1.0, 1.0, 20.0]).unwrap();
    assert!(lo > 0.0 && (lo * hi / (5.75 * 5.75) - 1.0).abs() < 1e-9, "{lo} {hi}");
    // Without one of them the means are 3, 2.5 and 1.5.
    let logs = [3.0f64, 2.5, 1.5].map(f64::ln);
    let mean = logs.iter().sum::<f64>() / 3.0;
    let variance = logs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() * 2.0 / 3.0;
    let factor = (4.3027 * variance.sqrt()).exp();
    let [lo, hi] = of_mean(&[1.0, 2.0, 4.0]).unwrap();
    assert!((hi * 3.0 / 7.0 / factor - 1.0).abs() < 1e-9, "{lo} {hi}");
}

/// By hand: of four repeats 48, 52, 49 and 51 % of the samples are up to the median, with a standard error of 0.91 %.
#[test]
fn the_interval_of_a_quantile_is_woodruffs() {
    let one = |low: u64| {
        let (low, high) = ((0..low).map(|i| i * 1000 / low), (low..1000).map(|i| (i, low)));
        let high = high.map(|(i, low)| 1000 + (i - low) * 1000 / (1000 - low));
        block(&low.chain(high).collect::<Vec<_>>())
    };
    let [lo, hi] = Pool::new(&[480, 520, 490, 510].map(one)).interval(500_000).unwrap();
    // 3.18 standard errors on the logit are 47.1 and 52.9 %.
    assert!((938.0..946.0).contains(&lo) && (1054.0..1062.0).contains(&hi), "{lo} {hi}");
}

#[test]
fn the_middle_of_unsorted_values_is_their_median() {
    assert_eq!([median(&mut [3.0, 1.0, 2.0]), median(&mut [9.0, 1.0])], [Some(2.0), Some(5.0)]);
    assert!(quotient(0.0, 0.0).is_nan());
    assert_eq!([quotient(0.0, 2.0), quotient(2.0, 0.0)], [0.0, f64::INFINITY]);
}

#[test]
fn equal_repeats_have_a_sharp_interval() {
    let [lo, hi] = of_mean(&[0.1; 7]).unwrap();
    assert!(lo == hi && (lo - 0.1).abs() < 1e-12, "{lo} {hi}");
}

#[test]
fn few_events_are_bounded_by_chance() {
    // None in five repeats: the exact bound is 3.69 (two-sided), Jeffreys' 2.51.
    let [lo, hi] = interval_of_counts(&[0.0; 5]).unwrap();
    assert!(lo == 0.0 && (2.3..2.7).contains(&(hi * 5.0)), "{hi}");
    // Ten: exactly [4.80, 18.4], by Jeffreys [5.1, 17.7].
    let [lo, hi] = interval_of_counts(&[2.0; 5]).unwrap();
    assert!((4.8..5.3).contains(&(lo * 5.0)) && (17.2..18.4).contains(&(hi * 5.0)), "{lo} {hi}");
    // The same ten at once say less.
    let [bunched, more] = interval_of_counts(&[0.0, 0.0, 10.0, 0.0, 0.0]).unwrap();
    // A variance of ten times the mean: one event of ten. (sqrt(1.375) -+ 0.98)^2 * 10 / 5.
    assert!((bunched - 0.0742).abs() < 1e-4 && (more - 9.267).abs() < 1e-3, "{bunched} {more}");
    assert!(bunched < lo / 4.0 && more > hi * 2.0);
    assert!(are_few(&[7.0; 5]) && !are_few(&[8.0; 5]) && are_few(&[0.0, 50.0, 80.0]));
}

#[test]
fn a_ratio_of_few_events_is_open_towards_none() {
    let [lo, hi] = interval_of_count_ratio(&[0.0; 5], &[20.0; 5]).unwrap();
    assert!(lo == 0.0 && (0.02..0.12).contains(&hi), "{hi}");
    // log(8.5 / 24.5) -+ 1.96 * sqrt(1 / 8.5 + 1 / 24.5); with a variance of eight times the mean, 8 / 8.5.
    for (mine, ends) in [([3.0, 5.0], [0.1590, 0.7570]), ([0.0, 8.0], [0.0497, 2.4197])] {
        let [lo, hi] = interval_of_count_ratio(&mine, &[10.0, 14.0]).unwrap();
        assert!((lo - ends[0]).abs() < 1e-4 && (hi - ends[1]).abs() < 1e-4, "{lo} {hi}");
    }
    assert_eq!(interval_of_count_ratio(&[0.0; 5], &[0.0; 5]), None);
    assert_eq!(interval_of_count_ratio(&[1.0; 5], &[0.0; 5]), None, "to zero");
}

#[test]
fn a_quantile_beyond_the_samples_has_no_interval() {
    let even: Vec<Block> = (0..3).map(|_| block(&(1..=1000).collect::<Vec<_>>())).collect();
    let ends = Pool::new(&even).interval(990_000).unwrap();
    assert!((989.0..990.0).contains(&ends[0]) && (990.0..991.0).contains(&ends[1]), "{ends:?}");
    // A rare event is in one repeat only: the interval of the p99 is not known from it.
    let mut odd = even;
    odd[2] = block(&(1..=1000).map(|i| if i > 900 { i * 50 } else { i }).collect::<Vec<_>>());
    assert_eq!(Pool::new(&odd).interval(990_000), None);
    let [lo, hi] = Pool::new(&odd).interval(500_000).unwrap();
    assert!(lo <= 500.0 && 500.0 <= hi, "{lo} {hi}");
}

#[test]
fn a_median_between_two_values_may_be_either() {
    let of = |low: [usize; 4]| {
        let one = |low: usize| block(&[vec![1000; low], vec![9000; 100 - low]].concat());
        let [lo, hi] = Pool::new(&low.map(one)).interval(500_000).unwrap();
        (lo < 1100.0, hi > 8900.0)
    };
    assert_eq!(of([44, 52, 47, 53]), (true, true), "the upper one, of 51 %");
    assert_eq!(of([47, 55, 48, 54]), (true, true), "the lower one, of 51 %");
    assert_eq!(of([20, 22, 19, 21]), (false, true), "surely the upper one");
    assert_eq!(of([80, 82, 79, 81]), (true, false), "surely the lower one");
}

/// What both sides share cancels in a paired ratio, but would drown an unpaired one.
#[test]
fn pairing_sharpens_ratios() {
    let base: Vec<f64> = (0..10).map(|r| 100.0 * f64::from(1 + r * r)).collect();
    let mine: Vec<f64> = base.iter().map(|v| v * 0.9).collect();
    let ratio = |w: &[u16]| quotient(weighted_mean(w, &mine), weighted_mean(w, &base));
    let [lo, hi] = interval(10, &ratio).unwrap();
    assert!((lo - 0.9).abs() < 1e-9 && (hi - 0.9).abs() < 1e-9);
    let [lo, hi] = of_mean(&mine).unwrap();
    assert!(hi / lo > 3.0, "the spread itself is large");
}

#[test]
fn ratios_to_zero_have_no_interval() {
    let (some, none) = ([1.0; 5], [0.0; 5]);
    let ratio =
        |a: &[f64], b: &[f64]| interval(5, &|w| quotient(weighted_mean(w, a), weighted_mean(w, b)));
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
    fn an_interval_holds_its_estimate(values in prop::collection::vec(1e-3f64..1e6, 2..20)) {
        let mean = weighted_mean(&vec![1; values.len()], &values);
        let [lo, hi] = of_mean(&values).unwrap();
        prop_assert!(0.0 < lo && lo <= mean * 1.000_001 && mean <= hi * 1.000_001);
    }
}
