#!/usr/bin/env python3
"""mpi_group_test.py PROGRAM PLUGIN: runs the program under mpirun as three ranks that gather, then as three of which one
does not come to a barrier. 77 where there is no mpirun."""
import os
import shutil
import subprocess
import sys
import time

program, plugin = sys.argv[1:3]
mpirun = shutil.which("mpirun")
if mpirun is None:
    print("no mpirun")
    sys.exit(77)
env = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(os.path.abspath(plugin)) + ":" + os.environ.get("LD_LIBRARY_PATH", ""),
           OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
           OMPI_MCA_btl="self,tcp,vader", OMPI_MCA_btl_vader_single_copy_mechanism="none")


def run(*arguments):
    begin = time.monotonic()
    done = subprocess.run([mpirun, "-n", "3", program, *arguments], env=env, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - begin


code, text, _ = run()
if code != 0:
    sys.exit("gathers: exit code %d\n%s" % (code, text))
code, text, took = run("miss")
if code != 3 or "waits at a host barrier over MPI; a rank has not come for 300 ms" not in text or took > 30:
    sys.exit("a rank that does not come: exit code %d after %.1f s\n%s" % (code, took, text))
print("gathers agree; a missing rank ends all with 3")
