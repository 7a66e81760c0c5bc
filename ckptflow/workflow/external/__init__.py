"""Codes that write restart files of their own: taken in, kept, and put back.

=======================  ===============================================================
names, options           which files, and what else the app says of its code
folder                   where the code works, and who may write there
image                    files as they go into a checkpoint and come out of it
judge, check             whether a file is complete
intake, notices          the newest complete file, saved
starting                 where an attempt goes on, and its folder made ready
stopping, processes      how the command ends, and everything it has started
handle                   what the function of the app gets
running                  one attempt, from folder to outcome
=======================  ===============================================================
"""

from ckptflow.workflow.external.handle import CodeTask
from ckptflow.workflow.external.options import Code, CodeOptions, parse_code

__all__ = ["Code", "CodeOptions", "CodeTask", "parse_code"]
