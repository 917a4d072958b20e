import os,time,subprocess,sys,psutil
code="import ray._raylet,time; import setproctitle" 
p=subprocess.Popen([sys.executable,"-c","import ray; from ray._private.utils import *; import ray._raylet as r; from ray._raylet import *; import setproctitle,time; setproctitle.setproctitle('ray::DeviceActor'); time.sleep(8)"])
time.sleep(5); q=psutil.Process(p.pid); print(repr(q.name()), q.cmdline()); p.kill()
