# Sums up the histogram of cyclictest. It pads numbers with zeros, which some awks read as octal.
BEGIN { rows = 0 }

function number(text) { sub(/^0+/, "", text); return text + 0 }

/^[0-9]/ {
    late = number($1); samples = 0
    for (i = 2; i <= NF; i++) samples += number($i)
    if (samples > 0) { seen[rows] = late; times[rows] = samples; rows++ }
    count += samples; sum += late * samples
}
/^# Avg Latencies:/ { for (i = 4; i <= NF; i++) average += number($i) / (NF - 3) }
/^# Max Latencies:/ { for (i = 4; i <= NF; i++) if (number($i) > longest) longest = number($i) }
/^# Histogram Overflows:/ { for (i = 4; i <= NF; i++) overflows += number($i) }

# The least value that this part of all samples does not exceed. Of what is longer than the
# histogram only the longest is known.
function percentile(part,    row, below) {
    for (row = 0; row < rows; row++) {
        below += times[row]
        if (below >= part * count) return seen[row]
    }
    return longest
}

END {
    count += overflows
    if (count == 0) { print "latency: cyclictest took no sample" >"/dev/stderr"; exit 1 }
    # The average of cyclictest knows those, too, but only in whole microseconds.
    printf "mean_us=%.3f\n", overflows ? average : sum / count
    printf "p50_us=%d\np99_us=%d\nmax_us=%d\n", percentile(0.50), percentile(0.99), longest
    printf "count=%d\noverflows=%d\n", count, overflows
}
