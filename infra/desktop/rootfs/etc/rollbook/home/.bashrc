# Interactive shells of the desktop's user.
case $- in *i*) ;; *) return ;; esac
HISTCONTROL=ignoreboth
PS1='\u@desktop:\w\$ '
alias ls='ls --color=auto'
alias grep='grep --color=auto'
