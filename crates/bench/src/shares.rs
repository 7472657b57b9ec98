//! Measures of fairness. Pure.

/// Returns Jain's index of `shares` (Jain, Chiu, Hawe, 1984): 1 if all are equal, 1/n if one has
/// everything; 1 without shares, and if all are 0.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// Returns the largest relative difference between a sender's amount and its share of the total by weight.
pub fn weight_error(got: &[f64], weights: &[f64]) -> f64 {
    let (sum, weight): (f64, f64) = (got.iter().sum(), weights.iter().sum());
    let error = |(got, own): (&f64, &f64)| (got / (sum * own / weight) - 1.0).abs();
    got.iter().zip(weights).map(error).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jain_goes_from_one_of_n_to_one() {
        assert_eq!(jain(&[5.0; 64]), 1.0);
        assert_eq!(jain(&[7.0, 0.0, 0.0, 0.0]), 0.25);
        assert!((jain(&[1.0, 2.0]) - 0.9).abs() < 1e-12);
        assert_eq!(jain(&[0.0, 0.0]), 1.0);
    }

    #[test]
    fn the_error_is_that_of_the_worst_sender() {
        assert_eq!(weight_error(&[10.0, 20.0, 40.0], &[1.0, 2.0, 4.0]), 0.0);
        assert!((weight_error(&[50.0, 50.0], &[1.0, 3.0]) - 1.0).abs() < 1e-12);
    }
}
