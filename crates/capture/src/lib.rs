//! Text traces of sched events turned into replayable threads
