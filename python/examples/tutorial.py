# %% [markdown]
# # From a scenario to a sweep to a picture
#
# A guest has real-time work, and its vCPU shares a CPU of the host with other load. How late does the work
# start, what does a cooperative policy change, and how much of that holds on a busier host? The simulator
# answers in seconds, on any machine, and always with the same numbers.
#
# It takes `pip install './python[pandas,plot]'`. Cells begin at `# %%`.

# %%
import json
from pathlib import Path

import vcoop

# %% [markdown]
# ## A scenario
#
# `vcoop.scenarios()` names the scenarios that come with vcoop. `busy-host-1` has one vCPU and two loads that take
# all the CPU time they can get. Policies, and any field of the scenario, can be changed. Five repeats are the
# fewest that give a verdict.

# %%
print(", ".join(vcoop.scenarios()[:5]), "...")
result = vcoop.run(
    "busy-host-1",
    policies=["vanilla", "wake-boost", "dynamic"],
    duration="1s",
    repeats=5,
)
print(result.verdicts[0])

# %% [markdown]
# ## Its numbers
#
# A row of the frame is one policy and one probe. `guest.cyclictest` is the real-time task: its latency is the time
# from when it was due to its first instruction, in microseconds. `mean_lo` and `mean_hi` are the ends of the 95 %
# interval over the repeats. `ratio` is to `vanilla`: where its interval contains 1, nothing is shown to differ.

# %%
frame = result.to_pandas()
urgent = frame[(frame.probe == "guest.cyclictest") & (frame.metric == "latency")]
print(urgent[["policy", "mean", "mean_lo", "mean_hi", "p99", "ratio", "ratio_lo", "ratio_hi"]])
p99 = urgent.set_index("policy")["p99"]

# %% [markdown]
# ## A picture
#
# Left: the share of samples that are later than so many microseconds. Right: mean and quantiles with their
# intervals.

# %%
result.plot("guest.cyclictest").savefig("latency.svg")

# %% [markdown]
# What it costs the others: the work that the loads of the host got done.

# %%
result.plot("host.hog", metric="throughput").savefig("work.svg")

# %% [markdown]
# ## A sweep
#
# Does it hold beside more loads, and for a task that runs less often? A sweep runs the scenario at each point of its
# axes. It writes a folder of Parquet files; the same call resumes a sweep that was stopped.

# %%
Path("study.toml").write_text("""
name = "study"
scenario = "busy-host-1"
policies = ["vanilla", "dynamic"]
[set]
duration = "400ms"
warmup = "50ms"
[axes]
"load.hog.count" = [1, 2, 4]
"vm.guest.task.cyclictest.interval" = ["1ms", "4ms"]
[repeats]
min = 3
max = 3
""")
study = vcoop.sweep("study.toml", out="study")
axes = [axis["name"] for axis in json.loads((study.out / "manifest.json").read_text())["axes"]]
print(study.points, "points over", " and ".join(axes))

# %% [markdown]
# Columns of the sweep's frame are the axes and those of a result. Durations are microseconds, and the column says so.

# %%
rows = study.to_pandas()
late = rows[(rows.probe == "guest.cyclictest") & (rows.metric == "latency")]
print(late.pivot_table(index=axes, columns="policy", values="mean"))

# %% [markdown]
# ## Its picture
#
# A line a policy, with its interval as a band. The other axis needs a value.

# %%
study.plot("hog_count", y="mean", probe="guest.cyclictest", where={"interval_us": 1000}).savefig("study.svg")
